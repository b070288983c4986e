"""The loop over simulated scores, with its real log: what is accepted, confirmed, counted, and refused."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from plinth.compute.context import Context
from plinth.errors import IntegrityError, LaunchError, RecipeError, RequestError, SignatureError
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_lab.experiments import run as experiments
from plinth_lab.experiments.arms import Arm
from plinth_lab.loop import page, question
from plinth_lab.loop.decision import HOLDS, INVALID, NOT_SHOWN, RULED_OUT
from plinth_lab.loop.question import ArmPair, Loop, merged
from plinth_lab.loop.run import PairScores, follow, shown
from plinth_lab.loop.tries import CONFIRMED, SUPPORTED, WITHDRAWN, LoopState, TryLog
from tests.plinth_lab.loop.simulated import GAIN_NOISE, Simulation

FILE: dict[str, Any] = {
    "name": "nightly",
    "question": "Which changes help?",
    "recipe": "tiny",
    "proposals": "proposals.jsonl",
    "test": {"prose": {"path": "test/prose.jsonl"}},
    "budget": {"tries": 20},
}
LEAST = 5 * GAIN_NOISE


@pytest.fixture
def ctx(tmp_path: Path, own_trust: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def proposal(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "overlay": {"training": {name: 1}}, "predicts": {"at_least": LEAST}, **more}


def written(folder: Path, lines: Sequence[dict[str, Any]], **keys: Any) -> tuple[Loop, Path]:
    path = folder / "nightly.yaml"
    path.write_text(yaml.safe_dump({**FILE, **keys}))
    (folder / "proposals.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return question.load(path), path


def followed(
    ctx: Context, folder: Path, gains: dict[str, float], lines: Sequence[Any] = (), scorer: Any = None, **keys: Any
) -> tuple[LoopState, str]:
    loop, path = written(folder, lines or [proposal(name) for name in gains], **keys)
    draw = Random(0).randrange
    return follow(ctx, loop, path, "recipe", scorer or Simulation(gains), lambda sentence: None, draw)


GAINS = {"null": 0.0, "better": 3 * LEAST, "worse": -LEAST, "again": 3 * LEAST}


def test_an_accepted_arm_becomes_the_base_after_new_seeds_confirm_it(ctx: Context, tmp_path: Path) -> None:
    scorer = Simulation(GAINS)
    state, reason = followed(ctx, tmp_path, GAINS, scorer=scorer)
    assert reason == "no new proposals"
    assert [one.verdict for one in state.tries] == [RULED_OUT, CONFIRMED, RULED_OUT, CONFIRMED]
    assert [one.base for one in state.tries] == ["base", "base", "better", "better"]
    assert state.base == "again"
    assert state.overlay() == {"training": {"better": 1, "again": 1}}
    preregistration = state.tries[1].preregistration
    assert preregistration is not None
    first, second, third, _ = (one.seeds for one in state.tries)
    assert first == second  # tries share the runs of their base
    assert third == preregistration.seeds  # and those of its confirmation
    assert not set(first) & set(third)
    assert preregistration.prediction == state.tries[1].proposal.predicts
    used = {pair.seeds[0] for pair in scorer.scored if pair.arm == "better"}
    assert used == {first[0], third[0]}
    assert state.analyses == len(scorer.scored)
    assert state == TryLog("nightly").state(ctx)  # the state that a later command reads


def test_the_prediction_is_signed_before_the_confirming_runs_start(ctx: Context, tmp_path: Path) -> None:
    seen: list[str] = []

    class Watched(Simulation):
        def score(self, pair: ArmPair) -> PairScores:
            kinds = [one.body["kind"] for one in TryLog("nightly").log.records(ctx)]
            found = super().score(pair)
            if pair.seeds[0] != self.first_seeds[pair.arm]:
                seen.append(kinds[-1])
            return found

    followed(ctx, tmp_path, {"better": GAINS["better"]}, scorer=Watched(GAINS))
    assert seen[0] == "preregistration"
    assert set(seen[1:]) <= {"confirming analysis"}


def test_an_acceptance_that_new_runs_do_not_confirm_is_withdrawn(ctx: Context, tmp_path: Path) -> None:
    scorer = Simulation(GAINS, later={"better": 3 * LEAST})  # its gain is gone in the confirming runs
    state, _ = followed(ctx, tmp_path, {}, [proposal("better"), proposal("again")], scorer)
    assert [one.verdict for one in state.tries] == [WITHDRAWN, CONFIRMED]
    assert state.tries[1].base == "base"
    assert state.overlay() == {"training": {"again": 1}}


def test_fresh_base_runs_give_every_try_its_own_seeds(ctx: Context, tmp_path: Path) -> None:
    state, _ = followed(ctx, tmp_path, GAINS, base_runs="fresh")
    groups = [one.seeds for one in state.tries]
    groups += [one.preregistration.seeds for one in state.tries if one.preregistration]
    assert len({seed for own in groups for seed in own}) == 8 * len(groups)


def test_invalid_and_higher_proposals_are_counted_and_do_not_become_the_base(ctx: Context, tmp_path: Path) -> None:
    lines = [proposal("broken"), proposal("worse", predicts={"direction": "higher", "at_least": 0.2 * LEAST})]
    state, _ = followed(ctx, tmp_path, {}, lines, Simulation({"worse": -3 * LEAST}))
    assert [one.verdict for one in state.tries] == [INVALID, SUPPORTED]
    assert "the overlay of broken is invalid" in state.tries[0].decision.reason  # type: ignore[union-attr]
    assert [one.number for one in state.tries] == [1, 2]
    assert state.base == "base"
    loop, _ = written(tmp_path, lines)
    assert "the overlay of broken is invalid" in page.page(loop, state, "no new proposals")


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"tries": 1}, "the budget is spent: 1 of 1 tries"),
        ({"tries": 9, "tokens": 700}, "the budget is spent: 600 of 700 tokens; the next analysis needs 200"),
        ({"tries": 9, "flops": 1e6}, "the budget is spent: 0 of 1e+06 flops; the next analysis needs 4e+06"),
    ],
)
def test_the_loop_stops_when_the_budget_is_spent(
    ctx: Context, tmp_path: Path, budget: dict[str, float], reason: str
) -> None:
    state, said = followed(ctx, tmp_path, {"null": LEAST, "better": LEAST}, budget=budget)
    assert said == reason
    more, _ = followed(ctx, tmp_path, {"null": LEAST, "better": LEAST})  # a budget may be raised
    assert len(more.tries) == 2 > len(state.tries) - 1
    assert more.tokens == 100 * 3 * 8  # runs of the base are counted once


def test_an_interrupted_loop_continues_and_counts_no_analysis_twice(ctx: Context, tmp_path: Path) -> None:
    class Stopped(Simulation):
        def score(self, pair: ArmPair) -> PairScores:
            if len(pair.seeds) == 4:
                raise LaunchError("no machine")
            return super().score(pair)

    gains = {"null": LEAST}
    with pytest.raises(LaunchError):
        followed(ctx, tmp_path, gains, scorer=Stopped(gains))
    scorer = Simulation(gains)
    state, _ = followed(ctx, tmp_path, gains, scorer=scorer)
    assert [len(pair.seeds) for pair in scorer.scored] == [4, 5, 6, 7, 8]
    assert (state.analyses, state.tries[0].verdict) == (7, NOT_SHOWN)


def _edit(folder: Path) -> None:
    file = folder / "00005.json"
    file.write_bytes(file.read_bytes().replace(b'"payload": "', b'"payload": "AAAA', 1))


def _remove(folder: Path) -> None:
    (folder / "00005.json").unlink()


def _renumber(folder: Path) -> None:
    (folder / "00005.json").unlink()
    for file in sorted(folder.glob("0*.json"))[4:]:
        file.rename(folder / f"{int(file.stem) - 1:05d}.json")


@pytest.mark.parametrize("attack", [_edit, _remove, _renumber])
def test_a_changed_or_removed_try_is_refused_by_name(
    ctx: Context, tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    gains = {"first": -LEAST, "second": -LEAST, "third": -LEAST}
    followed(ctx, tmp_path, gains)
    log = TryLog("nightly").log
    names = [one.body["name"] for one in log.records(ctx)]
    assert names[4] == "second"
    attack(log.folder(ctx))
    with pytest.raises(SignatureError, match=r"a try of loop nightly was changed or removed: second, record 5"):
        followed(ctx, tmp_path, gains)


def test_the_newest_tries_cannot_be_removed(ctx: Context, tmp_path: Path) -> None:
    gains = {"first": -LEAST, "second": -LEAST}
    followed(ctx, tmp_path, gains)
    folder = TryLog("nightly").log.folder(ctx)
    for file in sorted(folder.glob("0*.json"))[3:]:
        file.unlink()
    with pytest.raises(SignatureError, match="changed or removed: the newest") as error:
        followed(ctx, tmp_path, gains)
    assert "are missing" in str(error.value)


def test_a_proposal_or_rule_that_changed_after_its_try_is_refused(ctx: Context, tmp_path: Path) -> None:
    gains = {"first": -LEAST, "second": -LEAST}
    followed(ctx, tmp_path, gains)
    other = proposal("first", predicts={"at_least": 0.0})
    with pytest.raises(IntegrityError, match="proposal first was changed after it was tried"):
        followed(ctx, tmp_path, gains, [other, proposal("second")])
    with pytest.raises(IntegrityError, match="proposal second was removed after it was tried"):
        followed(ctx, tmp_path, gains, [proposal("first")])
    with pytest.raises(RequestError, match="has changed since its first try") as error:
        followed(ctx, tmp_path, gains, alpha=0.1)
    assert "alpha" in str(error.value)
    assert followed(ctx, tmp_path, gains, question="Which?")[1] == "no new proposals"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"name": "x"', "proposals.jsonl:2  not JSON"),
        ('{"name": "x", "name": "y"}', "repeated"),
        ('{"name": "../x", "overlay": {"a": 1}, "predicts": {"at_least": 1}}', "name"),
        ('{"name": "base", "overlay": {"a": 1}, "predicts": {"at_least": 1}}', "base is already taken"),
        ('{"name": "ok", "overlay": {"a": 1}, "predicts": {"at_least": 1}}', "ok is already taken"),
        ('{"name": "x", "overlay": {"a": NaN}, "predicts": {"at_least": 1}}', "cannot be written as JSON"),
        ('{"name": "x", "overlay": {"a": 1}, "predicts": {"at_least": -1}}', "predicts.at_least"),
        ('{"name": "x", "overlay": {"a": 1}, "predicts": {"at_least": Infinity}}', "predicts.at_least"),
        ("[1]", "expected a JSON object"),
    ],
)
def test_invalid_proposals_are_refused_with_their_line(tmp_path: Path, lines: str, said: str) -> None:
    loop, path = written(tmp_path, [proposal("ok")])
    with (tmp_path / "proposals.jsonl").open("a") as file:
        file.write(lines)
    with pytest.raises(RecipeError, match="are invalid") as error:
        question.proposals(loop, path)
    assert said in str(error.value)
    assert "proposals.jsonl:2" in str(error.value)


def test_proposals_as_yaml_are_those_of_json_lines(tmp_path: Path) -> None:
    lines = [proposal("one", by="agent", why="a guess"), proposal("two")]
    loop, path = written(tmp_path, lines)
    (tmp_path / "proposals.yaml").write_text(yaml.safe_dump({"proposals": lines}))
    other = loop.model_copy(update={"proposals": "proposals.yaml"})
    assert question.proposals(other, path) == question.proposals(loop, path)
    assert question.proposals(loop.model_copy(update={"proposals": "none.jsonl"}), path) == ()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"seeds": 3}, "try 20 could not be accepted; expected 5 or more"),
        ({"confirm_size": "next"}, "there is no size next"),
        ({"budget": {}}, "budget.tries"),
    ],
)
def test_a_loop_that_could_not_decide_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match="is invalid") as error:
        written(tmp_path, [], **keys)
    assert said in str(error.value)


def test_a_try_is_an_experiment_over_the_accepted_overlays(tmp_path: Path) -> None:
    loop, path = written(tmp_path, [], sizes={"small": {"mixture": {"total_tokens": 5120}}})
    base = {"training": {"optimizer": {"lr": 0.02}}}

    def arms(overlay: dict[str, Any]) -> list[Arm]:
        pair = ArmPair("faster", base, "wider", merged(base, overlay), "small", (7, 8))
        return list(question.compared(loop, path, pair)[1])

    first, *_, last = arms({"training": {"optimizer": {"beta2": 0.9}}})
    assert (first.asset, last.asset) == ("experiment/nightly/faster/small-s7", "experiment/nightly/wider/small-s8")
    assert first.recipe.training.optimizer.lr == last.recipe.training.optimizer.lr == 0.02
    assert last.recipe.training.seed == 8
    with pytest.raises(RecipeError, match="arm wider trains with more tokens than the base"):
        arms({"mixture": {"total_tokens": 5184}})
    with pytest.raises(RecipeError, match="arm wider trains with more FLOPs than the base"):
        arms({"training": {"model": {"layers": 3}}})
    with pytest.raises(RecipeError, match="arm wider changes evaluation"):
        arms({"evaluation": {"max_bytes_per_slice": 10}})


@pytest.mark.parametrize("left", ["a note", "a result"])
def test_a_loop_with_the_name_of_an_experiment_is_refused(ctx: Context, tmp_path: Path, left: str) -> None:
    loop, path = written(tmp_path, [proposal("null")])
    if left == "a note":
        experiment, _ = question.compared(loop, path, ArmPair("plain", {}, "other", {}, "one", (1,)))
        experiments.remember(ctx.workspace.root, experiment, path)
    else:
        made = Manifest(asset="experiment/nightly/plain/one-s1", step="s", version="1", params={}, inputs={}, parts=())
        ctx.refs.publish(made, "key")
    with pytest.raises(RequestError, match="loop nightly has the name of an experiment"):
        shown(ctx, path)
    other, renamed = written(tmp_path, [proposal("null")], name="night")  # the names differ by more than a prefix
    assert shown(ctx, renamed)[0] == other


def test_an_experiment_with_the_name_of_a_loop_is_refused(ctx: Context, tmp_path: Path) -> None:
    followed(ctx, tmp_path, {"null": 0.0})
    written(tmp_path, [proposal("null")])
    assert shown(ctx, tmp_path / "nightly.yaml")[2] == "no new proposals"
    file = tmp_path / "experiment.yaml"
    keys = {"base": "plain", "arms": {"plain": {}, "other": {}}}
    file.write_text(yaml.safe_dump({**{name: FILE[name] for name in ("name", "question", "recipe", "test")}, **keys}))
    with pytest.raises(RequestError, match="experiment nightly has the name of a loop"):
        experiments.run(ctx.workspace.root, file)
    assert not (ctx.workspace.root / "experiments" / "nightly" / experiments.NOTE).exists()


def test_overlays_merge_as_one_after_the_other() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None}, "d": [1]}) == {"a": {"b": None, "c": 2}, "d": [1]}
    with pytest.raises(RecipeError, match="sets keys below a"):
        merged({"a": None}, {"a": {"b": 1}})


def test_the_page_and_the_summary_show_tries_analyses_and_the_cost(ctx: Context, tmp_path: Path) -> None:
    state, reason = followed(ctx, tmp_path, GAINS)
    loop, _ = written(tmp_path, [proposal(name) for name in GAINS])
    found = page.summary(loop, state, reason)
    assert (found["tries"], found["analyses"], found["accepted"]) == (4, state.analyses, ["better", "again"])
    assert found["spent_alpha"] == pytest.approx(sum(one.level for one in state.tries))
    cost = found["multiplicity"]
    assert cost["next_level"] < state.tries[-1].level < cost["uncorrected_level"] == 0.05
    assert cost["next_margin"] > cost["uncorrected_margin"]
    assert all(0.9 < one["power"] <= 1 for one in found["results"][:2])
    html = page.page(loop, state, reason)
    for text in (
        "2 of 4 proposals became part of the base: better, again.", "Tries: 2 ruled out, 2 confirmed",
        "2 of 2 acceptances held in new runs", "no new proposals", "Cost of multiplicity",
        f"Detectable margin of the next try: {cost['next_margin']:.2g} standard deviations; without correction: 2<",
    ):  # fmt: skip
        assert text in html
    assert html == page.page(loop, state, reason)


def test_the_page_counts_withdrawn_acceptances_and_shows_no_tries(ctx: Context, tmp_path: Path) -> None:
    lines = [proposal("better"), proposal("null")]
    state, reason = followed(ctx, tmp_path, {}, lines, Simulation(GAINS, later={"better": 3 * LEAST}))
    loop, _ = written(tmp_path, lines)
    html = page.page(loop, state, reason)
    assert "None of 2 proposals became part of the base." in html
    assert "0 of 1 acceptance held in new runs" in html
    assert "No proposal was tried." in page.page(loop, LoopState(), reason)


def test_names_and_reasons_of_others_are_escaped_on_the_page(ctx: Context, tmp_path: Path) -> None:
    lines = [proposal("null", by="<script>alert(1)</script>", overlay={"a": "</code><script>"})]
    state, reason = followed(ctx, tmp_path, {"null": 0.0}, lines)
    loop, _ = written(tmp_path, lines)
    assert "<script>" not in page.page(loop, state, reason)


def test_a_decision_of_the_log_is_the_decision_of_the_scores(ctx: Context, tmp_path: Path) -> None:
    state, _ = followed(ctx, tmp_path, {"better": GAINS["better"]})
    found = state.tries[0].decision
    assert found is not None
    assert (found.outcome, len(found.seeds)) == (HOLDS, state.tries[0].analyses + 1)
