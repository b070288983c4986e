"""Whether an answer has the form that was asked for. Pure functions of the text and of what was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

TOOL_CALL = re.compile(r"<call>(.*)</call>", re.DOTALL)

#: An answer ends at the first empty line.
END = "\n\n"


def passes(check: str, asked: Mapping[str, Any], text: str) -> bool:
    """Whether what comes before the first empty line passes."""
    return _CHECKS[check](asked, text.split(END)[0].strip(" \n"))


def valid_json(asked: Mapping[str, Any], text: str) -> bool:
    """JSON, and nothing else, that fits `schema`."""
    try:
        return _fits(asked["schema"], json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return False


def tool_call(asked: Mapping[str, Any], text: str) -> bool:
    """`<call>` with the name of one of `tools` and arguments that fit its schema."""
    found = TOOL_CALL.fullmatch(text)
    try:
        call = json.loads(found[1], parse_constant=_refuse) if found else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["name"], str):
        return False
    schema = asked["tools"].get(call["name"])
    return schema is not None and _fits(schema, call["arguments"])


def pattern(asked: Mapping[str, Any], text: str) -> bool:
    """The whole answer matches the regular expression `pattern`."""
    return re.fullmatch(asked["pattern"], text) is not None


def exactly(asked: Mapping[str, Any], text: str) -> bool:
    """The answer is `text`."""
    return bool(text == asked["text"])


_CHECKS: dict[str, Callable[[Mapping[str, Any], str], bool]] = {
    "valid_json": valid_json,
    "tool_call": tool_call,
    "pattern": pattern,
    "exactly": exactly,
}


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    return bool(_validator(json.dumps(schema, sort_keys=True)).is_valid(value))


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
