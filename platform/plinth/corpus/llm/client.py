"""Client of an endpoint with the OpenAI API: one request per question, retries, limits, and checks of the responses.

A request that was not answered, or answered with 429 or 5xx, is sent again after a random delay with a doubling mean,
or after `Retry-After`; a 429 delays all requests. A request has a time limit that covers its whole response, and a
response a maximum size. Redirects are not followed, so that the key reaches only the address in the recipe.

A question without an answer is a `NoReply` with a reason, which the caller counts. A fault of the endpoint (wrong
key, wrong address, another model) is an `EndpointError`.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple

import httpx2

from plinth.corpus.llm.parameters import Endpoint, Questions
from plinth.errors import EndpointError, PlinthError
from plinth.text import visible

#: Statuses after which a request is sent again, with their reasons.
AGAIN: Final = {408: "timeout", 429: "rate_limited", **dict.fromkeys((500, 502, 503, 504, 529), "server_error")}
#: Statuses of an endpoint that cannot answer any question.
WRONG: Final = (401, 402, 403, 404, 405, 410)
#: Maximum delay between two attempts, and the longest `Retry-After` that is waited for, in seconds.
MAX_DELAY_S, MAX_RETRY_AFTER_S = 60.0, 600.0
#: Prompt tokens of a chat template; a byte of the prompt is at most one token.
TEMPLATE_TOKENS = 256
DETAIL_CHARACTERS = 200


class Reply(NamedTuple):
    """Response to a question: the model's text, the reason why it ended, and the tokens."""

    text: str
    finish: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class NoReply:
    """Question without an answer: a short reason for counts, and a detail for a person."""

    reason: str
    detail: str
    billed: bool = False  # the endpoint may have generated tokens


class _Again(Exception):
    """An attempt failed in a way that another attempt may not."""

    def __init__(self, fault: NoReply, delay_s: float | None = None) -> None:
        super().__init__(fault.detail)
        self.fault, self.delay_s = fault, delay_s


class Client:
    """Client of one endpoint and model. Use it as an asynchronous context manager."""

    def __init__(self, endpoint: Endpoint, questions: Questions, response_format: Mapping[str, Any] | None) -> None:
        self._endpoint, self._questions, self._format = endpoint, questions, response_format
        self._secret, self._resume_at, self._chance = endpoint.secret(), 0.0, random.Random()

    async def __aenter__(self) -> Client:
        headers = {"Accept-Encoding": "identity"}
        headers |= {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=self._endpoint.timeout_s,
            limits=httpx2.Limits(max_connections=self._endpoint.concurrency),
            follow_redirects=False,
            trust_env=not self._endpoint.is_loopback,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def probe(self) -> None:
        """Ask for one token, and check that the endpoint has the model and reports its name.

        Raises:
            EndpointError: the endpoint cannot be reached, does not have the model, or reports another model.
        """
        found = await self.ask("Hello", probing=True)
        if isinstance(found, NoReply):
            raise self._unusable(f"does not answer as {self._questions.reported}", f"{found.reason}: {found.detail}",
                                 await self._models())  # fmt: skip

    async def ask(
        self, prompt: str, *, probing: bool = False, may_repeat: Callable[[], bool] = lambda: True
    ) -> Reply | NoReply:
        """Ask a question.

        Args:
            may_repeat: function that permits another attempt after an attempt whose tokens may have been billed.

        Raises:
            EndpointError: the endpoint cannot answer any question.
        """
        asked = self._questions
        body: dict[str, Any] = {
            "model": asked.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 1 if probing else asked.max_tokens,
            "temperature": asked.temperature,
            "seed": asked.seed,
        }
        if self._format is not None and not probing:
            body["response_format"] = dict(self._format)
        found = await self._attempts("POST", "/chat/completions", body, may_repeat)
        return found if isinstance(found, NoReply) else self._reply(found, bound(prompt, body["max_tokens"]))

    async def _attempts(
        self, method: str, path: str, body: Mapping[str, Any] | None, may_repeat: Callable[[], bool]
    ) -> dict[str, Any] | NoReply:
        """Send a request until it is answered; return the JSON object, or the fault of the last attempt."""
        fault = NoReply("unreachable", "")
        for attempt in range(self._endpoint.attempts):
            while (wait_s := self._resume_at - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            try:
                async with asyncio.timeout(self._endpoint.timeout_s):
                    return await self._attempt(method, path, body)
            except _Again as again:
                fault, delay_s = again.fault, again.delay_s
            except (TimeoutError, httpx2.TimeoutException):
                fault, delay_s = (
                    NoReply("timeout", f"no response in {self._endpoint.timeout_s:g} s", billed=True),
                    None,
                )
            except httpx2.HTTPError as error:
                fault, delay_s = NoReply("unreachable", self._shown(f"{type(error).__name__}: {error}")), None
            if attempt + 1 < self._endpoint.attempts:
                if fault.billed and not may_repeat():
                    return fault
                mean_s = min(MAX_DELAY_S, self._endpoint.backoff_s * 2**attempt)
                jitter_s = self._chance.uniform(0.5, 1.5) * mean_s
                if fault.reason == "rate_limited":  # requests of all questions wait
                    self._resume_at = max(self._resume_at, time.monotonic() + (delay_s or jitter_s))
                await asyncio.sleep(jitter_s if delay_s is None else delay_s + 0.1 * jitter_s)
        return fault

    async def _attempt(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any] | NoReply:
        async with self._http.stream(method, f"{self._endpoint.url}{path}", json=body) as response:
            data = bytearray()
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > self._endpoint.max_answer_bytes:
                    return NoReply("too_large", f"more than {self._endpoint.max_answer_bytes:,} bytes", billed=True)
        status, shown = response.status_code, self._shown(bytes(data[: 4 * DETAIL_CHARACTERS]).decode(errors="replace"))
        if status in AGAIN:
            raise _Again(NoReply(AGAIN[status], f"HTTP {status}: {shown}"), self._retry_after(response.headers))
        if 300 <= status < 400:
            to = self._shown(response.headers.get("Location", f"HTTP {status}"))
            raise self._unusable("redirects to another address", to)
        if status in WRONG:
            listed = await self._models() if path != "/models" else ""
            raise self._unusable(f"refuses the request with HTTP {status}", shown, listed)
        if status != 200:
            return NoReply("request_refused", f"HTTP {status}: {shown}")
        if (parsed := _object(bytes(data))) is None:
            raise _Again(NoReply("malformed", f"not a JSON object: {shown}", billed=True))
        return parsed

    def _reply(self, found: Mapping[str, Any], most: tuple[int, int]) -> Reply | NoReply:
        """Check a response. Token counts that the endpoint does not report, or that are impossible, are counted as the
        maximum."""
        if found.get("model") != self._questions.reported:
            named = found.get("model")
            other = self._shown(named) if isinstance(named, str) else "no model"
            return NoReply("other_model", f"the response is from {other}", billed=True)
        choices = found.get("choices")
        listed = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
        chosen = next((one for one in listed if one.get("index", 0) == 0), {})
        message = chosen.get("message")
        text = message.get("content") if isinstance(message, dict) else None
        if not isinstance(text, str):
            return NoReply("malformed", f"no message in a response with {self._shown(', '.join(found))}", billed=True)
        usage = found.get("usage") if isinstance(found.get("usage"), dict) else {}
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))  # type: ignore[union-attr]
        tokens = [n if type(n) is int and 0 <= n <= top else top for n, top in zip(counts, most, strict=True)]
        text = text.encode("utf-8", "replace").decode()  # JSON can contain half of a surrogate pair
        return Reply(text, str(chosen.get("finish_reason") or "stop"), *tokens)

    async def _models(self) -> str:
        """Return the models that the endpoint lists, as text for an error; empty if it lists none."""
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                found = await self._attempt("GET", "/models", None)
        except (PlinthError, _Again, TimeoutError, httpx2.HTTPError):
            return ""
        listed = found.get("data") if isinstance(found, dict) else None
        names = [str(one.get("id")) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        return self._shown(", ".join(names[:10]))

    def _retry_after(self, headers: Mapping[str, str]) -> float | None:
        """Return the seconds in `Retry-After`, or None if there are none.

        Raises:
            EndpointError: the endpoint asks for a longer pause than a stage waits.
        """
        given = headers.get("Retry-After", "").strip()
        seconds: float | None = None
        if given.isdecimal() and len(given) < 10:
            seconds = float(given)
        elif given and (at := _date(given)) is not None:
            seconds = max(0.0, at - time.time())
        if seconds is not None and seconds > MAX_RETRY_AFTER_S:
            raise self._unusable("asks for a long pause", f"Retry-After: {seconds:,.0f} s", again="after that time")
        return seconds

    def _shown(self, text: str) -> str:
        """Return text of the endpoint for a message: short, on one line, and without the key."""
        hidden = text.replace(self._secret, "***") if self._secret else text
        return visible(" ".join(hidden.split()))[:DETAIL_CHARACTERS]

    def _unusable(self, what: str, found: str, models: str = "", again: str = "") -> EndpointError:
        return EndpointError(
            f"the endpoint {self._endpoint.url} {what}",
            found=found + (f"; it lists the models {models}" if models else ""),
            expected=f"answers of {self._questions.model}"
            + (f" that report {self._questions.reports}" if self._questions.reports else ""),
            remedy=f"run the same command again {again or 'when it is up, or after a correction of the recipe'}; "
            "answers that arrived are kept",
        )


def bound(prompt: str, max_tokens: int) -> tuple[int, int]:
    """Return the maximum numbers of prompt tokens and of generated tokens of a question."""
    return len(prompt.encode("utf-8", "replace")) + TEMPLATE_TOKENS, max_tokens


def _object(data: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; return None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _date(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None
