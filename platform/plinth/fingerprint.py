"""Canonical JSON and its SHA-256: the identity of a step, a recipe, an input.

Only literals bear identity. Paths, hosts, clocks and objects without a stable form are refused,
so that nothing which differs between two machines can slip into a key.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel


def canonical(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces; equal values give equal bytes.

    Raises:
        TypeError: for a value without a stable identity (a path, a set, an object).
        ValueError: for NaN or infinity, which JSON cannot carry.
    """
    plain = _plain(value, "$")
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """Hexadecimal SHA-256 of the canonical form of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: {value} has no canonical JSON form")
        return value
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="python"), where)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where}: key {key!r} is {type(key).__name__}, expected str")
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise TypeError(f"{where}: {type(value).__name__} bears no stable identity; expected JSON or a frozen model")
