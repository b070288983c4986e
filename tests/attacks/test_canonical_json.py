"""Attack: a key holder signs bytes that two readers parse as two different statements."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, standalone_verify
from plinth.trust.dsse import PROMOTER
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import EXPORT, RefusedExport
from plinth_registry.audit_log import RELEASES
from plinth_registry.exports import verify
from tests.registry.exports.conftest import SealedFolder
from tests.registry.test_releases import write

KIND = "urn:plinth:test:v1"
#: Errors that either verifier may raise to refuse an input.
REFUSALS = (SignatureError, RefusedExport, ValueError, RecursionError, KeyError, TypeError)
CONTENT = {**dsse.statement(KIND, {"a": "0" * 64}, {"n": 1, "x": 0.5, "s": "é/"}), "extra": None}

FORMS: dict[str, Callable[[bytes], bytes]] = {
    "a key twice, the first counts": lambda data: data[:-1] + b',"predicateType":"other"}',
    "a key twice, the last counts": lambda data: b'{"predicateType":"other",' + data[1:],
    "a key twice, equal": lambda data: data.replace(b'"n":1', b'"n":1,"n":1'),
    "a key twice, one escaped": lambda data: data.replace(b'"n":1', b'"n":1,"\\u006e":2'),
    "keys in another order": lambda data: data.replace(b'"n":1,', b"").replace(b'"x":0.5', b'"x":0.5,"n":1'),
    "spaces": lambda data: data.replace(b":", b": ", 1),
    "a line after it": lambda data: data + b"\n",
    "a second document": lambda data: data + data,
    "a zero byte": lambda data: data + b"\0",
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-32": lambda data: data.decode().encode("utf-32-le"),
    "bytes that are no UTF-8": lambda data: data.replace("é".encode(), b"\xe9"),
    "an escaped letter": lambda data: data.replace(b'"n"', b'"\\u006e"'),
    "an escaped slash": lambda data: data.replace(b"/", b"\\/"),
    "half of a surrogate pair": lambda data: data.replace("é".encode(), b"\\ud800"),
    "encoded half of a surrogate pair": lambda data: data.replace("é".encode(), b"\xed\xa0\x80"),
    "a float in two digits": lambda data: data.replace(b"0.5", b"0.50"),
    "a float with an exponent": lambda data: data.replace(b"0.5", b"5e-1"),
    "a float of too many digits": lambda data: data.replace(b"0.5", b"0.50000000000000000001"),
    "a whole number as a float": lambda data: data.replace(b'"n":1', b'"n":1e0'),
    "minus zero": lambda data: data.replace(b'"n":1', b'"n":-0'),
    "a leading zero": lambda data: data.replace(b'"n":1', b'"n":01'),
    "not a number": lambda data: data.replace(b"0.5", b"NaN"),
    "infinity": lambda data: data.replace(b"0.5", b"-Infinity"),
    "a number beyond floats": lambda data: data.replace(b"0.5", b"1e999"),
    "a number of 5,000 digits": lambda data: data.replace(b'"n":1', b'"n":' + b"9" * 5000),
    "nested": lambda data: data.replace(b'"n":1', b'"n":' + b"[" * 100_000 + b"]" * 100_000),
    "a list": lambda data: b"[" + data + b"]",
    "no JSON": lambda data: b"{",
}


def signed(payload: bytes, trust: Trust) -> dict[str, Any]:
    """Any bytes in an envelope, under a genuine signature."""
    bare = {"payload": base64.b64encode(payload).decode(), "payloadType": dsse.PAYLOAD_TYPE, "signatures": []}
    return dsse.signed_also(bare, trust.signer(PROMOTER))


@pytest.fixture(scope="module")
def trust(trust_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust.of(Workspace(tmp_path_factory.mktemp("workspace")))


def by_plinth(envelope: dict[str, Any], trust: Trust) -> dict[str, Any]:
    return dsse.opened(envelope, trust.authority(PROMOTER), KIND, "it")


def alone(envelope: dict[str, Any], trust: Trust) -> dict[str, Any]:
    found = standalone_verify._statement(envelope, KIND)
    standalone_verify._signers(envelope, trust.root.model_dump(mode="json"), PROMOTER, "it")
    return found


def test_the_statement_as_it_is_signed(trust: Trust) -> None:
    envelope = signed(fingerprint.canonical(CONTENT), trust)
    assert by_plinth(envelope, trust) == alone(envelope, trust) == CONTENT


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verifier", [by_plinth, alone])
def test_signed_bytes_in_another_form(trust: Trust, form: str, verifier: Callable[..., Any]) -> None:
    changed = FORMS[form](fingerprint.canonical(CONTENT))
    assert changed != fingerprint.canonical(CONTENT)
    with pytest.raises(REFUSALS):
        verifier(signed(changed, trust), trust)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
        max_leaves=12,
    )
)  # fmt: skip
def test_what_is_written_is_read_as_it_was(value: Any) -> None:
    assert fingerprint.canonical(fingerprint.parsed(fingerprint.canonical(value))) == fingerprint.canonical(value)


def test_composed_and_decomposed_text_are_two_texts(trust: Trust) -> None:
    """Nothing is normalized: what looks alike and is not has other bytes, and is never taken for the other."""
    names = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    assert fingerprint.digest({names[0]: 1}) != fingerprint.digest({names[1]: 1})
    content = {**CONTENT, "extra": dict.fromkeys(names, 1)}
    envelope = signed(fingerprint.canonical(content), trust)
    assert by_plinth(envelope, trust) == alone(envelope, trust) == content


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1: 2}, {"a": {b"b"}}])
def test_what_has_no_canonical_form_is_not_signed(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        fingerprint.canonical(value)


def test_an_envelope_that_repeats_a_key(trust: Trust, tmp_path: Path) -> None:
    """One reader takes the first of two payloads, which is valid, and another takes the last."""
    forged = base64.b64encode(fingerprint.canonical({**CONTENT, "extra": "forged"})).decode()
    text = json.dumps(signed(fingerprint.canonical(CONTENT), trust))
    path = tmp_path / "statement.json"
    for repeated in (f'{{"payload": "{forged}", {text[1:]}', text.replace('"sig"', '"sig": "", "sig"')):
        path.write_text(repeated)
        with pytest.raises(SignatureError, match="is repeated"):
            dsse.envelope_of(path)
        with pytest.raises(RefusedExport, match="duplicate key in JSON"):
            standalone_verify._json(path.read_bytes())


def test_a_subject_that_is_named_twice(trust: Trust) -> None:
    content = dsse.statement(KIND, {"a": "0" * 64}, {})
    content["subject"].append({"name": "a", "digest": {"sha256": "1" * 64}})
    with pytest.raises(SignatureError, match="duplicate subject"):
        dsse.subjects(content)


@pytest.mark.parametrize("form", ["a key twice, the last counts", "spaces", "a byte order mark", "a second document"])
def test_an_export_that_the_promoter_signs_in_another_form(export: SealedFolder, tmp_path: Path, form: str) -> None:
    at = export.copy(tmp_path / "copy")
    payload = base64.b64decode(json.loads((at / EXPORT).read_bytes())["payload"])
    trust = Trust.of(export.ctx.workspace)
    for data, holds in ((payload, True), (FORMS[form](payload), False)):
        (at / EXPORT).write_text(json.dumps(signed(data, trust), indent=1, sort_keys=True))
        assert (standalone_verify.main([str(at), "--root", str(export.root)]) == 0) == holds
        if holds:
            verify(at, export.root)
            continue
        with pytest.raises(SignatureError):
            verify(at, export.root)


@pytest.mark.parametrize("shown", ['"number": 1.0', '"number": true', '"number": 1, "number": 1'])
def test_a_record_for_people_that_is_written_otherwise(ctx: Context, own_trust: Path, shown: str) -> None:
    """Other programs read the record next to the envelope: all its numbers equal the signed ones."""
    write(ctx, "1")
    path = RELEASES.path(ctx, 1)
    text = path.read_text()
    assert '"number": 1' in text
    path.write_text(text.replace('"number": 1', shown, 1))
    with pytest.raises(SignatureError, match=r"differs from its signed record|is repeated"):
        RELEASES.records(ctx, whole=True)
