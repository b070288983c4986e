"""Signed statements in a folder, and their validation with the published schemas of predicates."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from plinth.trust.dsse import PAYLOAD_TYPE

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "predicates"


@cache
def validator(kind: str) -> Draft202012Validator:
    """The validator of a predicate type; a type without a schema is an error."""
    path = SCHEMAS / f"{kind.removeprefix('urn:plinth:').replace(':', '.')}.schema.json"
    schema = json.loads(path.read_bytes())
    assert schema["$id"] == kind
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def problems(kind: str, predicate: Any) -> list[str]:
    """What a schema finds wrong with a predicate."""
    return [f"{error.json_path}: {error.message}" for error in validator(kind).iter_errors(predicate)]


def statements(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every statement below a folder: in envelopes, in readable records, and in bundles of attempts."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for one in _envelopes(_json(data)) if PAYLOAD_TYPE.encode() in data else ():
            yield path, json.loads(base64.b64decode(one["payload"]))


def validated(folder: Path) -> set[str]:
    """The predicate types of ours below a folder, all of whose statements are valid."""
    found = set[str]()
    for path, statement in statements(folder):
        kind = statement["predicateType"]
        if kind.startswith("urn:plinth:"):
            assert not problems(kind, statement["predicate"]), path
            found.add(kind)
    return found


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _envelopes(found: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(found, dict):
        return
    if found.get("payloadType") == PAYLOAD_TYPE:
        yield found
    yield from _envelopes(found.get("envelope"))
    for one in found.get("attempts", ()):
        yield from _envelopes(one)
