"""Schemas of predicates: equal to the models, one for each type, and valid for what was signed before."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.trust.log_record import RecordForm
from plinth_audit.papers import provider
from plinth_audit.papers.provider import ProviderStatement
from plinth_ops.checklists import review
from plinth_registry import audit_log, incidents, taint
from plinth_registry.audit_log import AuditedAction
from plinth_registry.exports import data
from tests import judged_corpus
from tests.golden import archive
from tests.statements import SCHEMAS, problems, statements, validated
from tests.test_repository import ROOT, modules

#: URNs of ours that are no predicate type: SLSA's build type, our key in SLSA's verification summary, and the trace id.
OTHERS = {"urn:plinth:training:v1", "urn:plinth:gates:v1", "urn:plinth:trace:v1"}
ARCHIVED = {
    "root", "evidence", "approval", "gate-policy", "release", "release-head", "log:audit",
    *(f"attestation:{kind}" for kind in
      ("measurement", "contamination", "resume", "licences", "personal_data", "stability", "cost")),
}  # fmt: skip
WRITTEN = {
    "root", "exclusion", "export", "log:taint", "log:audit", "log:providers", "log:incidents", "log:check-waivers",
}  # fmt: skip


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("predicate_schemas", ROOT / "docs" / "predicate_schemas.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(kinds: set[str]) -> set[str]:
    return {f"urn:plinth:{kind}:v1" for kind in kinds}


def test_the_published_schemas_are_those_of_the_code() -> None:
    """After an intended change: `python docs/predicate_schemas.py`."""
    published = {path.name: path.read_text() for path in SCHEMAS.iterdir()}
    assert published == dict(generator().schemas())


def test_every_predicate_type_has_a_schema() -> None:
    known = set(generator().PREDICATES)
    assert set(_named_in_code()) - OTHERS <= known
    assert {RecordForm(name, ()).predicate for name in _logs()} <= known


def _named_in_code() -> Iterator[str]:
    for path in modules().values():
        yield from re.findall(r"\"(urn:plinth:[a-z:_-]+:v\d+)\"", path.read_text())


def _logs() -> Iterator[str]:
    """Names of the logs without a predicate type of their own."""
    for path in modules().values():
        for given in re.findall(r"= SignedLog\(((?:[^()]|\([^()]*\))*)\)", path.read_text()):
            if "kind=" not in given:
                yield given.strip().split('"')[1]


def test_statements_of_an_archived_release_are_valid(tmp_path: Path) -> None:
    archive.unpack(tmp_path)
    assert validated(tmp_path) == named(ARCHIVED)


@pytest.fixture
def signed(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, own_trust: Path) -> Path:
    """A folder with a workspace, in which every kind of person has signed something, and its trust."""
    ctx = judged_corpus.copy(tmp_path_factory, tmp_path)
    by = "compliance@example.org"
    taint.mark(ctx, ctx.refs.current("web/documents").digest, by, "must go")
    taint.lift(ctx, ctx.refs.current("web/documents").digest, by, "it may stay")
    taint.mark(ctx, _document(ctx), by, "one document")
    provider.sign(ctx, ProviderStatement(release="demo", provider="Example GmbH"))
    opened = incidents.declare(ctx, "The run diverges", by, runs=["demo"], targets=["web"])
    incidents.note(ctx, opened.number, "A bad batch", by)
    incidents.close(ctx, opened.number, "The batch was skipped", by)
    check = next(one for one in review.checks() if one.waivable)
    review.sign(ctx, check, "2030-01-01T00:00:00+00:00", "not before the next release")
    exclusions.append(ctx, kind="url", value="https://a.example/1", found=1, reason="A request of its author")
    audit_log.record(ctx, AuditedAction("taint", "web/documents", by), refusal="no such target")
    with data.leaving(ctx, [ctx.refs.current("prose/curated")], str(tmp_path / "out"), "text of prose") as seal:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/a.txt").write_bytes(b"a")
        seal.sign({"a.txt": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}, {"prose": "0" * 64})
    (tmp_path / "root.json").write_bytes((own_trust / "root.json").read_bytes())
    return tmp_path


def test_what_people_sign_is_valid_and_what_they_do_not_is_not(signed: Path) -> None:
    assert validated(signed) == named(WRITTEN)
    for _, statement in statements(signed):
        kind, predicate = statement["predicateType"], statement["predicate"]
        for wrong in _damaged(predicate):
            assert problems(kind, wrong), (kind, wrong)


def _damaged(predicate: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A predicate with an unknown field, without a required one, and with a field of another type."""
    yield predicate | {"colour": "red"}
    yield {name: value for name, value in predicate.items() if name != "at" and name != "issued"}
    first = next(name for name in predicate if name in ("number", "version", "name"))
    yield copy.deepcopy(predicate) | {first: ["x"]}


def _document(ctx: Context) -> str:
    from plinth.storage.parts import read_table

    (part, *_) = ctx.refs.current("web/curated").named("part-")
    return str(read_table(ctx.store, part).to_pylist()[0]["id"].hex())


def test_the_schemas_are_strict(tmp_path: Path) -> None:
    """Each object of ours is closed, so that a misspelled field is found; others' gates add keys to a policy."""
    for path in SCHEMAS.iterdir():
        schema = json.loads(path.read_bytes())
        for own in [schema, *schema.get("$defs", {}).values()]:
            if "properties" in own and own["title"] != "SignedGatePolicy":
                assert own["additionalProperties"] is False, (path.name, own["title"])
