"""Attempts to write around the license gate: however rules and sidecars read, forbidden text is never curated."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context, manifest
from plinth.corpus import annotate, curate
from plinth.corpus.annotate.licence import LICENCE_SCHEMA
from plinth.corpus.policy import policy
from plinth.corpus.policy.compiled_policy import Rights, compile_policy, rule_values
from plinth.corpus.policy.parameters import Policy, Rule
from plinth.corpus.policy.whatif import rules_of
from plinth.errors import StageError
from plinth.records import Manifest, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.workspace import Workspace
from tests.document_rows import document_part
from tests.rights import permitting

MIT = permitting("MIT")
OPEN = {"train": True, "redistribute": True, "commercial": True}
#: License and domain of the documents, one a row.
ROWS = (("MIT", "a"), ("unknown", "a"), ("GPL-3.0-only", "a"), ("MIT", "b"), ("MIT AND CC-BY-NC-4.0", "a"))
FORBIDDEN = [False, True, True, False, True]


def documents(ctx: Context, sources: tuple[dict[str, Any], ...] = ()) -> Manifest:
    rows = (
        {"id": bytes([number]) * 16, "text": f"text {number}", "uri": f"u:{number}", "licence": licence,
         "extra": json.dumps({"domain": domain})}
        for number, (licence, domain) in enumerate(ROWS)
    )  # fmt: skip
    part = document_part(ctx, rows)
    step = Step(name="documents", version="1", params={"sources": list(sources)})
    return manifest("web/documents", step, {}, [part])


def judged(ctx: Context, made: Manifest, rules: list[tuple[str, str]], rights: Rights = MIT) -> list[dict[str, Any]]:
    sides = {"licence": annotate.run(ctx, "web", "licence", {"permitted": ["MIT"]}, made)}
    given = Policy(rules=tuple(Rule(reason=reason, drop=drop) for reason, drop in rules))
    done = policy.run(ctx, "web", given, made, sides, rights)
    return read_table(ctx.store, done.parts[0]).to_pylist()


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "w").ensure())


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [("licence", "not licence.permitted and documents.source_bytes > 100000")],
        [("other", "not licence.permitted and documents.source_bytes > 100000")],
        [("licence", 'licence.expression == "not licence.permitted"')],
        [("terms", "licence.permitted is None")],
    ],
)
def test_no_rule_lets_a_forbidden_licence_pass(ctx: Context, rules: list[tuple[str, str]]) -> None:
    rows = judged(ctx, documents(ctx), rules)
    assert [not row["keep"] for row in rows] == FORBIDDEN
    assert [row["reason"] for row in rows] == ["licence" if stopped else None for stopped in FORBIDDEN]
    assert [row["fired"] for row in rows] == [["licence"] if stopped else [] for stopped in FORBIDDEN]


def test_a_rule_of_the_same_name_adds_to_the_gate(ctx: Context) -> None:
    rows = judged(ctx, documents(ctx), [("short", "documents.source_bytes < 1"), ("licence", 'documents.uri == "u:0"')])
    assert [row["fired"] for row in rows] == [["licence"], ["licence"], ["licence"], [], ["licence"]]


def test_a_sidecar_that_permits_everything_helps_nobody(ctx: Context) -> None:
    made = documents(ctx)
    forged = {"expression": "MIT", "permitted": True, "redistribute": True, "commercial": True}
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist([forged] * len(ROWS), LICENCE_SCHEMA))
    sides = {"licence": manifest("web/licence", Step(name="forged", version="1"), {}, [part])}
    rules = Policy(rules=(Rule(reason="licence", drop="not licence.permitted"),))
    done = policy.run(ctx, "web", rules, made, sides, MIT)
    assert read_table(ctx.store, done.parts[0]).column("keep").to_pylist() == [not one for one in FORBIDDEN]


def source(domain: str, **terms: bool) -> dict[str, Any]:
    return {"domain": domain, "snapshot": "s", "terms": OPEN | terms}


@pytest.mark.parametrize(
    ("sources", "uses", "stopped"),
    [
        ((source("a"), source("b", commercial=False)), (), False),
        ((source("a"), source("b", commercial=False)), ("redistribute",), False),
        ((source("a"), source("b", commercial=False)), ("commercial",), True),
        ((source("a"), source("b", train=False)), (), True),
        # two sources that documents cannot be told apart by: the stricter terms hold
        ((source("a"), source("b"), source("b", redistribute=False)), ("redistribute",), True),
        # terms that say nothing of a use do not allow it
        ((source("a"), {"domain": "b", "snapshot": "s", "terms": {"train": True}}), ("commercial",), True),
    ],
)
def test_terms_of_a_source_hold_for_its_documents(
    ctx: Context, sources: tuple[dict[str, Any], ...], uses: tuple[str, ...], stopped: bool
) -> None:
    rows = judged(ctx, documents(ctx, sources), [], permitting("MIT", uses=uses))
    assert rows[3]["keep"] is not stopped
    assert rows[3]["reason"] == ("terms" if stopped else None)
    assert rows[0]["keep"]
    assert rows[1]["reason"] == "licence"


def test_a_licence_that_forbids_a_use_is_stopped_where_the_recipe_declares_it(ctx: Context) -> None:
    made = documents(ctx)
    assert judged(ctx, made, [], permitting("MIT", commercial=()))[0]["keep"]
    assert judged(ctx, made, [], permitting("MIT", uses=("commercial",), commercial=()))[0]["reason"] == "licence"


def verdicts(ctx: Context, decisions: list[str]) -> Manifest:
    rows = [{"decision": decision, "edits": None} for decision in decisions]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, _VERDICTS))
    return manifest("web/verdicts", Step(name="forged", version="1"), {}, [part])


_VERDICTS = pa.schema([("decision", pa.string()), ("edits", policy.SCHEMA.field("edits").type)])


@pytest.mark.parametrize("decision", ["train", "heldout"])
def test_forged_verdicts_are_refused_where_text_is_written(ctx: Context, decision: str) -> None:
    made = documents(ctx)
    curate.run(ctx, "web", made, verdicts(ctx, ["train", "drop", "drop", decision, "drop"]), MIT)
    with pytest.raises(StageError, match="although the license gate forbids it") as caught:
        curate.run(ctx, "web", made, verdicts(ctx, ["train", "drop", decision, "train", "drop"]), MIT)
    assert caught.value.found == "licence: u:2 under GPL-3.0-only"
    withheld = documents(ctx, (source("a"), source("b", commercial=False)))
    wanted = permitting("MIT", uses=("commercial",))
    with pytest.raises(StageError, match="although the license gate forbids it") as caught:
        curate.run(ctx, "web", withheld, verdicts(ctx, ["train", "drop", "drop", decision, "drop"]), wanted)
    assert str(caught.value.found).startswith("terms: u:3")


def test_what_was_curated_under_laxer_lists_is_not_taken_from_the_cache(ctx: Context) -> None:
    made, decided = documents(ctx), verdicts(ctx, ["train", "drop", "train", "train", "drop"])
    curate.run(ctx, "web", made, decided, permitting("MIT", "GPL-3.0-only"))
    with pytest.raises(StageError, match="although the license gate forbids it"):
        curate.run(ctx, "web", made, decided, MIT)


def test_the_gate_stands_before_a_policy_that_is_only_tried(ctx: Context) -> None:
    rules = rules_of(Policy(), MIT, Policy(), (), "tried")
    columns = {"documents.licence": pa.array([licence for licence, _ in ROWS])}
    assert rules.fires(columns, len(ROWS)).tolist() == [FORBIDDEN]


def test_it_says_why(ctx: Context) -> None:
    made = documents(ctx)
    rule = compile_policy(Policy(), (), "policy", MIT).rule("licence")
    assert rule is not None
    assert "permitted_licences" in rule.text
    assert rule_values(ctx.store, rule, made, {}, 0, 2) == {"documents.licence": "GPL-3.0-only"}


def test_a_manifest_says_by_what_it_was_judged(ctx: Context) -> None:
    given = Policy(rules=(Rule(reason="short", drop="documents.source_bytes < 1"),))
    done = policy.run(ctx, "web", given, documents(ctx, (source("b", train=False),)), {}, MIT)
    assert policy.published(done) == (given, Rights(licences=MIT.licences, withheld=(("b", "s"),)))


@given(st.lists(st.sampled_from(["MIT", "unknown", "GPL-3.0-only"]), min_size=0, max_size=12), st.booleans())
def test_dictionaries_and_strings_are_judged_alike(licences: list[str], encoded: bool) -> None:
    column = pa.array(licences, pa.string())
    found = MIT.stops({"documents.licence": column.dictionary_encode() if encoded else column})
    assert found["licence"].tolist() == [licence != "MIT" for licence in licences]
