"""Values of one expression over time, from Prometheus's HTTP API (`query_range`)."""

from __future__ import annotations

import json
from typing import Any

TIMEOUT_S = 10.0
#: Points of one query: Prometheus gives no more than 11,000.
MOST_POINTS = 10_000
MOST_BYTES = 2**24


def query(url: str, expression: str, begin: int, end: int, step_s: int) -> dict[int, float]:
    """The values of an expression at `begin`, `begin + step_s`, … up to `end` (seconds since 1970); where it has none,
    the time is absent.

    Raises:
        OSError: Prometheus does not answer.
        ValueError: it refuses the expression, or gives several series.
    """
    import requests

    asked: dict[str, str] = {"query": expression, "start": str(begin), "end": str(end), "step": str(step_s)}
    place = f"{url.rstrip('/')}/api/v1/query_range"
    try:
        with requests.get(place, params=asked, timeout=TIMEOUT_S, allow_redirects=False, stream=True) as answer:
            body = _body(url, answer)
    except requests.RequestException as error:
        # One fault, one alarm: without the times that were asked for.
        raise OSError(f"{url} does not answer: {type(error).__name__}") from error
    return _values(body, f"{url} (status {answer.status_code})")


def _body(url: str, answer: Any) -> bytes:
    """The answer, if it is not too long."""
    body = bytearray()
    for piece in answer.iter_content(2**16):
        body += piece
        if len(body) > MOST_BYTES:
            raise ValueError(f"{url} answered with more than {MOST_BYTES:,} bytes")
    return bytes(body)


def _values(body: bytes, who: str) -> dict[int, float]:
    try:
        said: dict[str, Any] = json.loads(body)
        if said["status"] != "success":
            raise ValueError(f"{who} refused the expression: {said.get('error')}")
        found = said["data"]["result"]
        if len(found) > 1:
            raise ValueError(f"{who} gave {len(found)} series: aggregate them to one, such as by sum(…)")
        return {round(at): float(value) for at, value in (found[0]["values"] if found else ())}
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{who} gave no answer of Prometheus") from error
