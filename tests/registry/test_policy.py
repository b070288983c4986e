"""The newest policy signed by the owner of a release governs; no other user can add one, or remove it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import GateError, RecipeError
from plinth.evaluation.statistics import upper_share
from plinth.trust.dsse import POLICY
from plinth.trust.root import Trust
from plinth_audit.canaries.audit import lower_bound
from plinth_audit.pii_outputs.job import PROMPTS
from plinth_jobs import policies
from plinth_jobs.recipes import load as load_recipe
from plinth_registry import gates as all_gates
from plinth_registry import policy
from plinth_registry.canary import PairedStream, judge
from plinth_registry.gates import evaluate, settings
from plinth_registry.gates.settings import GatePolicy
from tests.registry.gate_evidence import policy as strict
from tests.registry.gate_evidence import proof

WITHOUT = {"stability": "the run is too short to restart"}


def signed(ctx: Context, *versions: GatePolicy) -> policy.SignedPolicy:
    for one in versions:
        policy.sign(ctx, one)
    return policy.current(ctx, "demo")


def file_of(ctx: Context, version: int) -> Path:
    return ctx.workspace.policies / "demo" / f"{version:05d}.json"


def test_without_a_signed_policy_nothing_governs(ctx: Context) -> None:
    with pytest.raises(GateError, match="no signed gate policy for demo"):
        policy.current(ctx, "demo")


def test_the_newest_signed_version_governs(ctx: Context) -> None:
    first = signed(ctx, strict())
    assert (first.policy, first.signers) == (strict(), (Trust.of(ctx.workspace).signer(POLICY).owner,))
    second = signed(ctx, strict(version=2, without=WITHOUT))
    assert second.policy.without == WITHOUT
    assert [one.digest for one in policy.history(ctx, "demo")] == [first.digest, second.digest]
    assert second.digest == policy.digest(second.policy) != first.digest


def test_signing_the_same_again_changes_nothing(ctx: Context) -> None:
    first = signed(ctx, strict())
    data = file_of(ctx, 1).read_bytes()
    assert (policy.sign(ctx, strict()), file_of(ctx, 1).read_bytes()) == (first, data)


@pytest.mark.parametrize("version", [2, 3])
def test_a_version_out_of_turn_is_refused(ctx: Context, version: int) -> None:
    with pytest.raises(GateError, match="is not the next version of the policy"):
        signed(ctx, strict(version=version))
    signed(ctx, strict())
    with pytest.raises(GateError, match="is not the next version of the policy"):
        signed(ctx, strict(version=1, without=WITHOUT))


def test_what_does_not_hold_governs_nothing(ctx: Context) -> None:
    assert policy.governing(ctx, "demo") == ""
    assert policy.governing(ctx, "demo") != signed(ctx, strict()).digest == policy.governing(ctx, "demo")
    file_of(ctx, 1).write_text("{}")
    assert policy.governing(ctx, "demo") == ""


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("release: demo\nslices: {margin: -1, max_bits_per_byte: 2}", "x.yaml:2  slices.margin"),
        ("release: demo\ngates: off", "x.yaml:2  gates"),
        ("release: demo\nwithout:\n  signature: nobody needs one", "x.yaml:2  without"),
        ("release: demo", "x.yaml:1"),
        ("release: demo\nrelease: other", "x.yaml:2"),
        ("- demo", "x.yaml:1"),
        (
            "release: demo\nslices: {max_bits_per_byte: 2}\nextensions: {colour: {}}",
            "no gate 'colour'",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_by_line_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        policy.load(Path("x.yaml"))
    assert says in str(caught.value)


@pytest.mark.parametrize("name", sorted(path.stem for path in policies.FOLDER.glob("*.yaml")))
def test_packaged_policies_load_and_name_every_gate(name: str) -> None:
    found = policy.load(policies.FOLDER / f"{name}.yaml")
    assert (found.release, found.version) == (name, 1)
    assert found.asked[:2] == ("signature", "lineage")


@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_the_policy_of_a_packaged_recipe_asks_nothing_that_it_does_not_measure(name: str) -> None:
    recipe = load_recipe(Path("jobs/plinth_jobs/recipes") / f"{name}.yaml")
    assert policy.unmeasured(policies.packaged(name), recipe) == ()


def test_the_bounds_of_the_demo_are_those_that_its_numbers_of_items_give() -> None:
    """The arithmetic in the comments of the packaged policy `demo`: chance passes, and little more does not."""
    recipe, asked = load_recipe(Path("jobs/plinth_jobs/recipes/demo.yaml")), policies.packaged("demo")
    written, planted = recipe.evaluation.pii_outputs, recipe.corpus.canaries
    assert written is not None
    assert planted is not None
    outputs = written.samples + len(PROMPTS) * (1 + written.draws)
    for bound, n, chance in (
        (asked.extraction.max_share, asked.extraction.min_windows, 1),
        (asked.pii.max_data_share, asked.pii.min_documents, 0),
        (asked.pii.max_output_share, written.samples, 4),
        (asked.pii.max_memorised_share, outputs, 2),
    ):
        assert upper_share(chance, n) <= bound < upper_share(chance + 1, n)
    repeated = planted.count * 3 // len(planted.repetitions)
    assert lower_bound(repeated, repeated) < asked.canaries.max_epsilon < lower_bound(planted.count, planted.count)


def test_the_trial_of_the_demo_ends_and_can_end_either_way() -> None:
    """The power that the packaged policy `demo` states, with the fewest pairs that the demo's recipe gives."""
    recipe, rules = load_recipe(Path("jobs/plinth_jobs/recipes/demo.yaml")), policies.packaged("demo").trial
    pairs = len(recipe.corpus.buckets) * recipe.corpus.holdout.min_documents
    assert (pairs, rules.promote, rules.level) == (112, "automatic", 0.95)
    assert pairs >= rules.least == 100  # the default, below which no stream is judged

    def share(decision: str, worse: float, deviation: float) -> float:
        """Return the share of trials with this decision, for a canary that is worse by `worse` on average."""
        rng, ends = np.random.default_rng(0), 0
        for _ in range(100):
            champion = rng.uniform(3.0, 4.0, pairs)
            canary = champion * (1 + rng.normal(worse, deviation, pairs))
            stream = PairedStream("held-out text", list(zip(canary.tolist(), champion.tolist(), strict=True)))
            ends += judge(rules, [stream]).decision == decision
        return ends / 100

    assert share("promote", 0.0, 0.03) == 1.0
    assert share("return", 0.04, 0.03) == 1.0
    assert share("promote", 0.005, 0.03) > 0.9
    assert share("promote", 0.0, 0.05) > 0.7
    assert share("return", 0.04, 0.05) > 0.7
    assert share("promote", rules.margin, 0.03) <= 0.05  # as bad as the margin allows: hardly ever proved to be within
    assert share("return", rules.margin, 0.03) <= 0.05


def test_gates_that_a_recipe_measures_nothing_for_are_named() -> None:
    recipe = load_recipe(Path("jobs/plinth_jobs/recipes/tiny.yaml"))
    assert set(policy.unmeasured(strict(), recipe)) == {
        "tasks: needs evaluation.tasks",
        "extraction: needs evaluation.extraction",
        "canaries: needs corpus.canaries",
        "pii_outputs: needs evaluation.pii_outputs",
        "bias: needs evaluation.fairness",
        "toxicity: needs evaluation.fairness",
        "toxicity: needs corpus.annotate.toxicity",
    }


# ---- what a demo signs by itself -----------------------------------------------------------------


def recipe_of(release: str) -> Any:
    return load_recipe(Path("jobs/plinth_jobs/recipes/tiny.yaml")).model_copy(
        update={
            "release": load_recipe(Path("jobs/plinth_jobs/recipes/tiny.yaml")).release.model_copy(
                update={"name": release}
            )
        }  # type: ignore[union-attr]
    )


def test_a_demo_root_signs_the_packaged_policy_once(ctx: Context) -> None:
    made = policies.ensure(ctx, recipe_of("tiny"))
    assert made is not None
    assert made.policy == policies.packaged("tiny")
    assert policies.ensure(ctx, recipe_of("tiny")) == made
    other = policies.ensure(ctx, recipe_of("mine"))
    assert other is not None
    assert other.policy.release == "mine"
    assert set(other.policy.without) == {"max_bits_per_byte"}


def test_a_real_root_signs_nothing_by_itself(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trust.of(ctx.workspace)
    root = real.root.model_copy(update={"demo": False})
    monkeypatch.setattr(Trust, "of", classmethod(lambda cls, workspace: Trust(real.folder, root)))
    assert policies.ensure(ctx, recipe_of("tiny")) is None
    assert list(ctx.workspace.policies.rglob("*.json")) == []


def test_settings_of_a_trial_that_came_later_change_no_digest_of_policies_signed_before() -> None:
    """Unset fields of a policy are not in its digest: otherwise signed policies would become invalid."""
    asked = strict(trial={"margin": 0.01})
    assert set(asked.model_dump(mode="json")["trial"]) == {"margin", "level", "least", "higher_is_better"}
    assert "trial" not in strict().model_dump(mode="json")


def test_a_gate_whose_package_is_not_here_fails_unless_it_is_left_out(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "absent_gates", lambda: {"scale_weight": "plinth_shed"})
    monkeypatch.setattr(all_gates, "absent_gates", settings.absent_gates)
    settings._signed_model.cache_clear()
    given = strict().model_dump(mode="json")
    try:
        asked = settings.gate_policy(given | {"scale": {"limit": 1}})  # signed where the package is
        assert asked.model_dump(mode="json") == given | {"scale": {"limit": 1}}
        result = next(one for one in evaluate(asked, proof()) if one.name == "scale_weight")
        assert (result.state, "needs the package plinth_shed" in result.reason) == ("failed", True)
        out = settings.gate_policy(given | {"without": {"scale_weight": "nobody weighs models"}})
        assert "scale_weight" not in {one.name for one in evaluate(out, proof())}
        with pytest.raises(ValueError, match="aprovals: unknown key"):
            settings.gate_policy(given | {"aprovals": {"people": 0}})
    finally:
        settings._signed_model.cache_clear()
