"""Effects of another policy: exact counts on a planted corpus, the same with any cut and any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.corpus import verdicts
from plinth.corpus.dedup import exact
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.policy import policy, whatif
from plinth.corpus.policy.compiled_policy import Rights
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.sidecars import Smallest, rank
from plinth.errors import IntegrityError, RecipeError
from plinth.recipe.load import load_tried
from plinth.records import Manifest
from plinth.storage.parts import read_table, write_table
from tests import judged_corpus
from tests.judged_corpus import PLANTED, POLICY, RIGHTS
from tests.rights import permitting


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return judged_corpus.copy(tmp_path_factory, tmp_path_factory.mktemp("judged"))


def changed(**drops: str) -> Policy:
    """The published policy with other expressions; an empty one takes the rule away."""
    rules = [rule.model_copy(update={"drop": drops.pop(rule.reason, rule.drop)}) for rule in POLICY.rules]
    more = [{"reason": reason, "drop": drop} for reason, drop in drops.items()]
    kept = [rule.model_dump() for rule in rules if rule.drop]
    return Policy.model_validate({"rules": (*kept, *more), "edits": POLICY.model_dump()["edits"]})


def tried(
    ctx: Context, new: Policy, rights: Rights = RIGHTS, **options: Any
) -> tuple[dict[str, Any], list[whatif.Flip]]:
    buckets = {name: whatif.published_bucket(ctx, name) for name in PLANTED}
    return whatif.compare(ctx, buckets, dict.fromkeys(PLANTED, new), rights, **options)


def test_the_same_policy_changes_nothing(ctx: Context) -> None:
    found, flips = tried(ctx, POLICY)
    for one in (*found["buckets"].values(), found["total"]):
        assert one["newly_dropped"]["documents"] == one["newly_kept"]["documents"] == one["other_reason"] == 0
        assert {k: (v["fires"], v["marginal"], v["unique"]) for k, v in one["rules"].items() if v["fires"]} == {
            k: (v["fires"], v["marginal"], v["unique"]) for k, v in one["rules_before"].items()
        }
    assert flips == []
    web = found["buckets"]["web"]
    assert (web["documents"], web["kept"]) == (55, 46)
    assert web["edits"] == {}  # counted where the edits differ
    published = ctx.refs.current("web/verdicts").stats
    assert web["bytes"] == published["bytes"]
    assert web["kept_bytes"] == published["bytes"] - published["stage_bytes"]["policy"]


def test_looser_and_stricter_by_bucket_and_reason(ctx: Context) -> None:
    new = changed(too_few_words="gopher_quality.word_count < 5", personal="pii.email > 0")
    found, flips = tried(ctx, new, samples=3)
    web, prose = found["buckets"]["web"], found["buckets"]["prose"]
    short = ctx.refs.current("web/verdicts").stats["policy_reason_bytes"]["too_few_words"]
    assert web["newly_kept"]["documents"] == 6
    assert web["newly_kept"]["reasons"] == {"too_few_words": {"documents": 6, "bytes": short}}
    assert web["newly_dropped"]["reasons"].keys() == {"personal"}
    assert web["newly_dropped"]["documents"] == sum(web["newly_dropped"]["decisions"].values()) == 2
    assert (prose["newly_kept"]["documents"], prose["newly_dropped"]["documents"]) == (2, 0)
    assert found["total"]["newly_kept"]["documents"] == 8
    assert web["rules"]["personal"] | {"fires_bytes": 0, "marginal_bytes": 0, "unique_bytes": 0} == {
        "fires": 2, "marginal": 2, "unique": 2, "fires_bytes": 0, "marginal_bytes": 0, "unique_bytes": 0
    }  # fmt: skip
    assert [flip.direction for flip in flips] == ["newly_dropped"] * 2 + ["newly_kept"] * 3


def test_other_edits_are_counted(ctx: Context) -> None:
    edits = ({"reason": "personal", "spans": "pii.spans"},)
    found, _ = tried(ctx, Policy.model_validate({"rules": POLICY.model_dump()["rules"], "edits": edits}))
    assert found["buckets"]["web"]["edits"] == {"personal": {"documents": 2, "spans": 2}}


@pytest.mark.parametrize("stale", [False, True])
def test_stored_outcomes_are_used_only_while_they_hold(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, stale: bool
) -> None:
    """An annotator that ran again makes what the policy stored of its columns worthless."""
    ctx = judged_corpus.copy(tmp_path_factory, tmp_path)
    if stale:
        scores = ctx.refs.current("web/gopher_quality")
        longer = [
            write_table(ctx.store, part.name, doubled(read_table(ctx.store, part))) for part in scores.named("part-")
        ]
        ctx.refs.publish(Manifest.model_validate({**scores.model_dump(), "parts": longer}), key="k")
    found, _ = tried(ctx, changed(too_few_words="gopher_quality.word_count  < 20"))  # two spaces: not word for word
    same, _ = tried(ctx, POLICY)
    assert same["buckets"]["web"]["newly_kept"]["documents"] == (PLANTED["web"][1] if stale else 0)
    assert found["total"]["newly_kept"] == same["total"]["newly_kept"]


def doubled(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("word_count")
    field = table.schema.field(at)
    return table.set_column(at, field, pc.multiply(table.column(at), 2).cast(field.type))


def test_order_moves_reasons_and_not_documents(ctx: Context) -> None:
    found, _ = tried(ctx, changed(too_few_words="", few_stop_words="gopher_quality.stop_words < 999"))
    web = found["buckets"]["web"]
    assert web["kept"] == 0
    assert web["newly_dropped"]["documents"] == 46
    assert web["other_reason"] == 6  # the rule too_few_words was removed, so few_stop_words drops them
    assert web["rules"]["few_stop_words"]["unique"] == 55 - 3


def test_a_policy_without_the_licence_rule_lets_nothing_forbidden_in(ctx: Context) -> None:
    found, flips = tried(ctx, changed(licence="", too_few_words="", few_stop_words=""))
    web = found["buckets"]["web"]
    assert (web["kept"], web["newly_kept"]["documents"], web["rules"]["licence"]["unique"]) == (52, 6, 3)
    assert {flip.before for flip in flips} == {"too_few_words"}


def test_the_licence_gate_is_that_of_the_new_recipe(ctx: Context) -> None:
    """Not the published one, nor its outcome under the name of a rule that did not change."""
    found, flips = tried(ctx, changed(licence=""), permitting("MIT", "CC0-1.0", "GPL-3.0-only"), samples=100)
    assert found["buckets"]["web"]["newly_kept"]["reasons"]["licence"]["documents"] == PLANTED["web"][2]
    assert {flip.before for flip in flips} == {"licence"}
    found, flips = tried(ctx, changed(licence=""), permitting("CC0-1.0"), samples=1)
    assert (found["total"]["kept"], flips[0].after) == (0, "licence")
    found, _ = tried(ctx, POLICY, permitting("CC0-1.0"))
    assert found["total"]["kept"] == 0


def test_a_dropped_survivor_is_counted(ctx: Context) -> None:
    found, _ = tried(ctx, changed(all_of_it="gopher_quality.word_count > 0"))
    assert found["buckets"]["web"]["newly_dropped"]["survivors"] == PLANTED["web"][3]


def test_samples_are_those_of_the_smallest_hashes_with_what_made_the_rule_fire(ctx: Context) -> None:
    new = changed(too_few_words="gopher_quality.word_count < 31")
    buckets = {name: whatif.published_bucket(ctx, name) for name in PLANTED}
    found, flips = whatif.compare(ctx, buckets, dict.fromkeys(PLANTED, new), RIGHTS, samples=4, seed=9)
    shown = whatif.shown(ctx, buckets, dict.fromkeys(PLANTED, new), RIGHTS, flips)
    dropped = Smallest(4)
    for name in PLANTED:
        rows = ctx.refs.current(f"{name}/documents").named("part-")
        sides = ctx.refs.current(f"{name}/policy").named("part-")
        for part, side in zip(rows, sides, strict=True):
            keep = read_table(ctx.store, side, ["keep"]).column("keep").to_pylist()
            table = read_table(ctx.store, part, ["id", "text"]).to_pylist()
            for row, kept in zip(table, keep, strict=True):
                if kept and len(row["text"].split()) < 31:
                    dropped.offer(rank(row["id"], 9), row["id"].hex())
    assert [row["id"] for row in shown] == dropped.chosen()
    assert found["total"]["newly_dropped"]["documents"] > 4
    for row in shown:
        assert (row["reason"], row["rule"]) == ("too_few_words", "gopher_quality.word_count < 31")
        assert row["values"] == {"gopher_quality.word_count": 30}
        assert row["uri"].startswith(f"https://{row['bucket']}.example/")
        assert row["excerpt"]
    again, _ = whatif.compare(ctx, buckets, dict.fromkeys(PLANTED, new), RIGHTS, samples=4, seed=10)
    assert again == found


def test_workers_change_nothing(ctx: Context, two_workers: LocalEngine) -> None:
    new = changed(too_few_words="gopher_quality.word_count < 31")
    alone = tried(ctx, new)
    assert tried(Context(ctx.workspace, two_workers), new) == alone


def test_a_run_confirms_the_forecast(ctx: Context) -> None:
    """The policy stage keeps the documents that the trial predicts, and verdicts give the reasons that it predicts."""
    new = changed(too_few_words="gopher_quality.word_count < 31")
    found, _ = tried(ctx, new)
    documents = {name: ctx.refs.current(f"{name}/documents") for name in PLANTED}
    scores = {n: {one: ctx.refs.current(f"{n}/{one}") for one in judged_corpus.ANNOTATORS} for n in PLANTED}
    judged = {name: policy.run(ctx, name, new, documents[name], scores[name], RIGHTS) for name in PLANTED}
    assert {name: made.stats["kept"] for name, made in judged.items()} == {
        name: one["kept"] for name, one in found["buckets"].items()
    }
    same = exact.run(ctx, Dedup(), documents, judged)
    near = minhash.run(ctx, Dedup(), documents, {n: ctx.refs.current(f"{n}/minhash") for n in PLANTED}, same)
    held, overlap = ctx.refs.current("holdout"), ctx.refs.current("contamination")
    made = verdicts.run(ctx, "web", documents["web"], judged["web"], same, near, held, overlap)
    rules = {name: rule for name, rule in found["buckets"]["web"]["rules"].items() if rule["fires"]}
    assert made.stats["policy_reasons"] == {name: rule["marginal"] for name, rule in rules.items() if rule["marginal"]}
    assert {n: (r["fired"], r["only"], r["only_bytes"]) for n, r in made.stats["rules"].items()} == {
        n: (r["fires"], r["unique"], r["unique_bytes"]) for n, r in rules.items()
    }


def test_unknown_column_is_named_with_its_nearest(ctx: Context) -> None:
    with pytest.raises(RecipeError, match=r"gopher_quality\.word_count"):
        tried(ctx, changed(too_few_words="gopher_quality.word_cuont < 5"))
    with pytest.raises(RecipeError, match=r"no column 'fineweb\.ended_lines'"):
        tried(ctx, changed(lines="fineweb.ended_lines < 0.1"))  # an annotator whose sidecar was never made


def test_stale_verdicts_are_refused(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    ctx = judged_corpus.copy(tmp_path_factory, tmp_path)
    other = ctx.refs.current("web/policy").model_copy(update={"version": "other"})
    ctx.refs.publish(other, key="k")
    with pytest.raises(IntegrityError, match="stale"):
        whatif.published_bucket(ctx, "web")


RECIPE = Path(__file__).parents[5] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"


def test_a_file_of_policies_is_laid_over_the_recipe(tmp_path: Path) -> None:
    new = tmp_path / "new.yaml"
    new.write_text("policies:\n  code:\n    rules:\n      - {reason: licence, drop: not licence.permitted}\n")
    recipe = load_tried(new, RECIPE)
    assert [rule.reason for rule in recipe.corpus.policies["code"].rules] == ["licence"]
    assert [rule.spans for rule in recipe.corpus.policies["code"].edits] == ["pii.spans"]
    assert len(recipe.corpus.policies["default"].rules) > 20
    new.write_text("buckets: {web: {policy: code}}\n")
    assert load_tried(new, RECIPE).corpus.buckets["web"].policy == "code"
    new.write_text(f"extends: {RECIPE}\nname: other\n")
    assert load_tried(new, RECIPE).name == "other"


def test_a_trial_may_leave_out_the_rules_of_a_gate(tmp_path: Path) -> None:
    web, new = Path(__file__).parents[4] / "web.yaml", tmp_path / "new.yaml"
    assert load_tried(web, web).corpus.slices
    new.write_text("policies: {crawl: {rules: [{reason: licence, drop: not licence.permitted}]}}")
    assert not load_tried(new, web).corpus.slices


def test_what_is_wrong_has_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    new = tmp_path / "new.yaml"
    new.write_text(
        "# tried\npolicies:\n  code:\n    rules:\n      - {reason: licence, drop: not licence.permitted}\n"
        "      - reason: short\n        drop: gopher_quality.wrod_count < 9\n"
    )
    with pytest.raises(RecipeError, match=r"new\.yaml:7 .*wrod_count.*did you mean 'gopher_quality.word_count'"):
        load_tried(new, RECIPE)
    new.write_text("policies: {}\nlicense: x\n")
    with pytest.raises(RecipeError, match=r"new\.yaml:2 .*license"):
        load_tried(new, RECIPE)
    new.write_text("policies:\n\t- x\n")
    with pytest.raises(RecipeError, match="not YAML"):
        load_tried(new, RECIPE)
