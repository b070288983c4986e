"""Experiment file and the runs that it defines: one recipe for each arm, size and seed.

Overlays are applied to the recipe in this order: `common`, the size, the arm. Then the experiment sets keys that no
overlay can change: the test text, the seeds, the name of the run, and that no launch contract is required. If a key
determines the score, it must be the same in all arms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

from plinth.corpus.protected.parameters import ProtectedSet
from plinth.errors import BudgetError, RecipeError
from plinth.evaluation.statistics import Estimate, mean
from plinth.model.architectures import flops_exact
from plinth.recipe.load import check_over
from plinth.recipe.recipe import Recipe
from plinth.recipe.yaml_lines import Key, Lined, Position, Problem, dotted, named, read, shown
from plinth.records import Frozen, Name
from plinth_lab.experiments.effects import ArmScores
from plinth_lab.mixture import ConfirmationQuestion, Swarm
from plinth_lab.source_value.question import ANNEAL, SourceQuestion

# Arms for the values of one key, such as learning rates or batch sizes, and the best value with an interval.
#
# The loss over the logarithm of such a setting is nearly a parabola around its optimum. For each seed, a parabola is
# fitted to the best value and up to two neighbors on either side. The interval is Student's over the optima of the
# seeds. A best value at the end of the range only shows in which direction to extend the range.

#: Number of neighbors on either side of the best value to which the parabola is fitted.
NEIGHBOURS = 2


class Sweep(Frozen):
    """Values of one recipe key, with one arm per value: a geometric range, or a list."""

    key: str = Field(pattern=r"^[a-z_0-9]+(\.[a-z_0-9]+)+$", description="Recipe key, such as `training.optimizer.lr`.")
    low: float | None = Field(None, gt=0, description="First value of the range.")
    high: float | None = Field(None, gt=0, description="Last value of the range.")
    points: int = Field(5, ge=3, le=32, description="Number of values in the geometric range.")
    values: tuple[int | float | str | bool, ...] = Field((), description="List of values to try, instead of a range.")

    @model_validator(mode="after")
    def _one_of_both(self) -> Sweep:
        ranged = self.low is not None and self.high is not None and self.low < self.high
        if ranged == bool(self.values) or (self.low is None) != (self.high is None):
            raise ValueError("expected `values`, or `low` and `high` with `low` below `high`")
        if self.values and len({name_of(value) for value in self.values}) < max(2, len(self.values)):
            raise ValueError("values: expected at least two different values")
        return self

    def swept(self) -> tuple[int | float | str | bool, ...]:
        """Return the values to try. Values in a geometric range are rounded to three digits."""
        if self.values or self.low is None or self.high is None:
            return self.values
        return tuple(float(f"{value:.3g}") for value in np.geomspace(self.low, self.high, self.points).tolist())

    def arms(self) -> dict[str, dict[str, Any]]:
        """Return the recipe overlay for each swept value, by arm name."""
        found = {}
        for value in self.swept():
            overlay: Any = value
            for step in reversed(self.key.split(".")):
                overlay = {step: overlay}
            found[name_of(value)] = overlay
        return found

    def base(self) -> str:
        """Return the name of the base arm, which has the middle value of the sweep."""
        names = [name_of(value) for value in self.swept()]
        return names[len(names) // 2]


class SweepOptimum(Frozen):
    """Best value of a swept key at one size.

    `best` is the arm with the lowest mean loss. If `optimum` is None, `why` states the reason.
    """

    size: str
    key: str
    best: str = ""
    optimum: Estimate | None = None
    why: str = ""


def name_of(value: float | str | bool) -> str:
    """Return the arm name for a swept value: `at-0-001` for 0.001."""
    text = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    return "at-" + re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def optima(sweep: Sweep, scores: Sequence[ArmScores]) -> list[SweepOptimum]:
    """Return the best swept value at each size, or an empty list if the values are not positive numbers."""
    values = {name_of(value): value for value in sweep.swept()}
    if any(isinstance(value, str | bool) or value <= 0 for value in values.values()):
        return []
    numbers = {name: math.log(float(value)) for name, value in values.items()}
    return [_optimum(sweep.key, size, numbers, scores) for size in dict.fromkeys(one.size for one in scores)]


def _optimum(key: str, size: str, values: Mapping[str, float], scores: Sequence[ArmScores]) -> SweepOptimum:
    losses: dict[int, dict[str, float]] = {}
    for one in scores:
        if one.size == size and not one.trouble and one.arm in values:
            losses.setdefault(one.seed, {})[one.arm] = float(one.bits.sum() / one.bytes.sum())
    common = [name for name in values if losses and all(name in own for own in losses.values())]
    if not common:
        return SweepOptimum(size=size, key=key, why="no value finished with all seeds")
    best = min(common, key=lambda name: sum(own[name] for own in losses.values()))
    found, edges = [], 0
    for own in losses.values():
        at = _vertex(sorted((values[name], loss) for name, loss in own.items()))
        edges += at is None
        found += [] if at is None else [at]
    if edges:
        why = f"in {edges} of {len(losses)} seeds, the best value is at an end of the range: extend the range there"
        return SweepOptimum(size=size, key=key, best=best, why=why)
    if len(found) < 2:
        return SweepOptimum(size=size, key=key, best=best, why="an interval needs several seeds")
    logs = mean(found)
    ends = {name: math.exp(getattr(logs, name)) for name in ("value", "low", "high")}
    interval = logs.model_copy(update={**ends, "p": None, "unit": None, "freedom": None})
    return SweepOptimum(size=size, key=key, best=best, optimum=interval)


def _vertex(points: Sequence[tuple[float, float]]) -> float | None:
    """Fit a parabola around the point with the lowest loss and return its minimum.

    Return None if the lowest point is at an end of the range.

    Args:
        points: pairs of x and loss, sorted by x.
    """
    at = min(range(len(points)), key=lambda one: points[one][1])
    if not 0 < at < len(points) - 1:
        return None
    near = points[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]
    x, loss = np.array(near).T
    curve, slope, _ = np.polyfit(x - x.mean(), loss, 2).tolist()
    vertex = x.mean() - slope / (2 * curve) if curve > 0 else math.nan
    inside = points[at - 1][0] <= vertex <= points[at + 1][0]
    return float(vertex) if inside else points[at][0]


#: Pattern of names that become part of run names, asset keys and file names.
ArmName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=24)]
#: Minimum number of sizes to fit a ladder to.
FEWEST_SIZES = 3
#: Recipe keys, as in a file that extends the recipe.
Overlay = Mapping[str, Any]


class ExperimentBudget(Frozen):
    """Budget for all runs of an experiment. An experiment that would exceed its budget does not start."""

    tokens: int | None = Field(None, gt=0, description="Maximum training tokens, summed over all runs.")
    flops: float | None = Field(None, gt=0, description="Maximum training FLOPs over all runs (PaLM's formula).")


class LadderQuestion(Frozen):
    """Scaling ladder over model sizes: a law is fitted to all sizes but one, and predicts the remaining size."""

    held_out: ArmName = Field(description="Size to predict before it is trained. The law is fitted to the other sizes.")


class Experiment(Frozen):
    """Comparison of arms (variants of one recipe) over sizes and seeds, on test text that no arm trains on."""

    name: ArmName
    question: str = Field(min_length=1, description="Question that the experiment answers, as a sentence.")
    recipe: str = Field(description="Recipe for all arms: a path relative to this file, or a packaged recipe.")
    base: ArmName = Field(description="Name of the arm that all other arms are compared with.")
    test: Mapping[Name, ProtectedSet] = Field(
        min_length=1,
        description="Test text: JSONL files in `input/`, by slice. The test text is a protected set in every arm, so "
        "exact and near copies of it are removed from the training text of all arms.",
    )
    common: Overlay = Field(default_factory=dict, description="Recipe keys that apply to all arms.")
    arms: Mapping[ArmName, Overlay] = Field(min_length=1, description="Recipe keys that each arm sets; `{}` sets none.")
    sizes: Mapping[ArmName, Overlay] = Field({"one": {}}, min_length=1, description="Recipe keys that each size sets.")
    seeds: tuple[int, ...] = Field(
        (1, 2, 3), min_length=1, description="Seeds for initial weights and data order. Each arm has a run per seed."
    )
    curve_points: int = Field(4, ge=1, le=64, description="Number of scored checkpoints per run, including the last.")
    stop_losing: bool = Field(False, description="Stop an arm that cannot win according to a sequential test.")
    sweep: Sweep | None = Field(
        None, description="Values of one key, such as learning rates. Each value is an arm. Replaces `arms`."
    )
    swarm: Swarm | None = Field(
        None, description="Random mixtures around a prior, to propose a better one. Each is an arm. Replaces `arms`."
    )
    source: SourceQuestion | None = Field(
        None, description="Source to evaluate, with price and share. One arm omits the source. Replaces `arms`."
    )
    confirms: ConfirmationQuestion | None = Field(
        None,
        description="Swarm proposal to confirm: one arm trains on the proposed mixture, another arm on the swarm's "
        "prior. Replaces `arms`.",
    )
    ladder: LadderQuestion | None = Field(
        None, description="Fit a scaling law to all sizes except one, and predict this size. Needs a single arm."
    )
    budget: ExperimentBudget = ExperimentBudget()

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("the seed is listed twice, so its runs would be identical")
        return seeds

    @model_validator(mode="after")
    def _known_base(self) -> Experiment:
        if self.base not in self.arms:
            raise ValueError(f"base: there is no arm {self.base}; expected one of {', '.join(self.arms)}")
        if self.ladder is None and len(self.arms) < 2:
            raise ValueError("arms: expected at least two arms, or `ladder`")
        if self.confirms and (shared := sorted({*self.confirms.seeds} & {*self.seeds})):
            raise ValueError(f"seeds: the swarm has used {shared} for the proposal; expected other seeds to confirm it")
        if self.ladder is not None:
            if len(self.arms) > 1 or self.stop_losing:
                raise ValueError("ladder: expected a single arm, and `stop_losing: false`")
            if self.ladder.held_out not in self.sizes or len(self.sizes) < FEWEST_SIZES + 1:
                raise ValueError(f"ladder: expected at least {FEWEST_SIZES + 1} sizes, and held_out as one of them")
        return self


#: First part of the asset keys of an experiment.
PREFIX = "experiment"


def tries_of(name: str) -> str:
    """Return the folder with the log of a loop. A loop has the assets of an experiment, so their names must differ."""
    return f"{PREFIX}s/{name}/tries"


#: Keys of the file that generate the arms and set their base.
KINDS: Mapping[str, type[Sweep | Swarm | SourceQuestion | ConfirmationQuestion]] = {
    "sweep": Sweep, "swarm": Swarm, "source": SourceQuestion, "confirms": ConfirmationQuestion,
}  # fmt: skip
#: Keys that determine a score or the test text.
FIXED = ("evaluation", "corpus.holdout", "corpus.protected", "corpus.contamination")


@dataclass(frozen=True)
class Arm:
    """One run of an experiment: an arm at one size with one seed.

    Args:
        experiment, arm, size, seed: names and number that identify the run.
        recipe: the recipe that the run follows.
        overlay: recipe keys that the arm changes, as written in the file.
    """

    experiment: str
    arm: str
    size: str
    seed: int
    recipe: Recipe
    overlay: Mapping[str, Any] = field(hash=False)

    @property
    def asset(self) -> str:
        """Asset key of the run."""
        return f"{PREFIX}/{self.branch}"

    @property
    def branch(self) -> str:
        """Name of the run's branch, which has the references to its corpus, weights and scores."""
        return f"{self.experiment}/{self.arm}/{self.size}-s{self.seed}"

    @property
    def tokens(self) -> int:
        """Number of tokens that the run trains on."""
        return self.recipe.mixture.total_tokens if self.recipe.mixture else 0

    @property
    def horizons(self) -> tuple[int, ...]:
        """Token counts at which the learning rate has fully decayed: `training.optimizer.horizons`, and the end of the
        run."""
        return tuple(round(share * self.tokens) for share in (*self.recipe.training.optimizer.horizons, 1.0))

    @property
    def flops(self) -> float:
        """Training FLOPs of the run, for the vocabulary size in the recipe (`flops_exact`)."""
        sequence = self.recipe.mixture.sequence_tokens if self.recipe.mixture else 0
        return float(self.tokens * flops_exact(self.recipe.training.model, self.recipe.tokenizer.vocab_size, sequence))


def load(path: Path, packaged: Path | None = None) -> tuple[Experiment, tuple[Arm, ...]]:
    """Load an experiment file. Return the experiment and its runs, sorted by seed.

    For each seed, there is one run of every arm at every size.

    Args:
        path: experiment file.
        packaged: folder of recipes that the file can reference by name.

    Raises:
        RecipeError: the file or the recipe of an arm is invalid (the message names the line), or an arm changes a key
            that determines the score.
        BudgetError: the runs would exceed the budget.
    """
    return built(read(path, shown(path)), path, packaged)


def built(lined: Lined, path: Path, packaged: Path | None = None) -> tuple[Experiment, tuple[Arm, ...]]:
    """Return the experiment that parsed keys define, and its runs; see `load`.

    Args:
        lined: keys of an experiment file.
        path: file to name in errors. The recipe and its sources are found relative to it.
    """
    lined = _with_made_arms(lined)
    experiment = _validated(lined, path)
    recipe = named(experiment.recipe, path.parent, packaged) or path.parent / experiment.recipe
    arms = []
    lined = _with_source(lined, experiment, recipe, path, packaged)
    for seed, size, arm in product(experiment.seeds, experiment.sizes, experiment.arms):
        over = [_below(lined, key) for key in (("common",), ("sizes", size), ("arms", arm), ("source", size, arm))]
        own = _own(experiment, arm, seed, lined.mark(("test",), Position(shown(path), 1)))
        made = check_over(recipe, [*over, own], path, packaged=packaged)
        for name, given in experiment.test.items():
            if made.corpus.protected.sets[name] != given:
                raise RecipeError(
                    f"{shown(recipe)} already has a protected set {name}",
                    expected="another name for the test text",
                    remedy=f"rename test.{name} in {shown(path)}",
                )
        arms.append(Arm(experiment.name, arm, size, seed, made, experiment.arms[arm] or over[-1].data))
    _require_alike(experiment, arms, lined, path)
    _require_affordable(experiment, arms)
    return experiment, tuple(arms)


def _with_made_arms(lined: Lined) -> Lined:
    """Return the experiment file with the arms that its sweep, swarm, proposal or source defines.

    The base arm is the middle value, the prior, or the arm without the source.
    """
    for kind, read_as in KINDS.items():
        given = lined.data.get(kind) if isinstance(lined.data, dict) else None
        try:
            made = read_as.model_validate(given)
        except ValidationError:
            continue  # without one, or named with its line when the whole file is validated
        mark, arms = lined.mark((kind,), Position("", 1)), made.arms()
        problems = list(lined.problems)
        if "arms" in lined.data:
            problems.append(Problem(mark, "arms", f"`{kind}` already defines the arms; remove `arms` or `{kind}`"))
        data = {"base": made.base(), **lined.data, "arms": arms}
        if isinstance(made, ConfirmationQuestion):
            data |= {"base": made.base()}
        if isinstance(made, SourceQuestion):
            if ANNEAL in (lined.data.get("sizes") or {}):
                problems.append(
                    Problem(
                        mark, f"sizes.{ANNEAL}", "the section `source` defines a size of this name; rename your size"
                    ),
                )
            data |= {"base": made.base(), "sizes": made.sizes(lined.data.get("sizes"))}
        own = {name: data[name] for name in ("arms", "sizes") if name in data}
        marks = {**dict.fromkeys(_keys(own, ()), mark), **lined.marks}
        lined = replace(lined, data=data, marks=marks, problems=problems)
    return lined


def _with_source(lined: Lined, experiment: Experiment, recipe: Path, path: Path, packaged: Path | None) -> Lined:
    """Return the experiment file with its source replaced by recipe overlays, one per arm and size."""
    if experiment.source is None:
        return lined
    mark, made = lined.mark(("source",), Position(shown(path), 1)), dict[str, Any]()
    for size in experiment.sizes:
        over = [_below(lined, key) for key in (("common",), ("sizes", size))]
        plain = check_over(recipe, over, path, packaged=packaged)
        made[size] = {arm: experiment.source.overlay(plain, size, arm) for arm in experiment.arms}
    marks = {**lined.marks, **dict.fromkeys([("source", *key) for key in _keys(made, ())], mark)}
    return replace(lined, data={**lined.data, "source": made}, marks=marks)


def _validated(lined: Lined, path: Path) -> Experiment:
    top = Position(shown(path), 1)
    problems = list(lined.problems)
    if not problems:
        try:
            return Experiment.model_validate(lined.data)
        except ValidationError as error:
            unmade = {"arms", "base"} if set(KINDS) & set(lined.data) else set()  # by a kind that is wrong itself
            for detail in error.errors(include_url=False):
                key = tuple(step for step in detail["loc"] if step != "[key]")
                if key and key[0] in unmade and detail["type"] == "missing":
                    continue
                problems.append(Problem(lined.mark(key, top), dotted(key), detail["msg"]))
    listed = "\n".join(f"  {problem}" for problem in problems)
    raise RecipeError(
        f"the experiment {shown(path)} is invalid\n{listed}",
        remedy="correct the lines listed above; docs/experiments.md describes every key",
    )


def _below(lined: Lined, key: Key) -> Lined:
    """Return the part of a YAML file below a key, with its line numbers."""
    data: Any = lined.data
    for step in key:
        data = data.get(step, {}) if isinstance(data, dict) else {}
    marks = {known[len(key) :]: mark for known, mark in lined.marks.items() if known[: len(key)] == key}
    return Lined(data=data or {}, marks=marks)


def _own(experiment: Experiment, arm: str, seed: int, mark: Position) -> Lined:
    """Return the recipe keys that the experiment sets for every run."""
    sets = {name: one.model_dump(mode="json", exclude_unset=True) for name, one in experiment.test.items()}
    data = {
        "name": f"{experiment.name}-{arm}",
        "corpus": {"protected": {"sets": sets}},
        "mixture": {"seed": seed},
        "training": {"seed": seed, "contract": "optional"},  # a contract is for the run that they prepare
    }
    return at_one_place(data, mark)


def at_one_place(data: dict[str, Any], mark: Position) -> Lined:
    """Return keys that were not parsed from a file, with one position for all of them."""
    return Lined(data=data, marks=dict.fromkeys(_keys(data, ()), mark))


def _keys(data: Any, at: Key) -> Sequence[Key]:
    """Return the key path of every entry in nested mappings and lists."""
    steps: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list | tuple) else ()
    return [key for step, value in steps for key in ((*at, step), *_keys(value, (*at, step)))]


def _require_alike(experiment: Experiment, arms: Sequence[Arm], lined: Lined, path: Path) -> None:
    """Raise RecipeError if an arm changes a key that determines the score."""
    base = {(one.size, one.seed): one.recipe for one in arms if one.arm == experiment.base}
    for one in arms:
        for name in FIXED:
            if _section(one.recipe, name) != _section(base[one.size, one.seed], name):
                key = ("arms", one.arm, *name.split("."))
                raise RecipeError(
                    f"{lined.mark(key, Position(shown(path), 1))}  arm {one.arm} changes {name}",
                    found=f"{name} has different values in {one.arm} and {experiment.base}",
                    expected="the same value in all arms, because it determines the score",
                    remedy="move the key to `common:`, or write two experiments",
                )


def _section(recipe: Recipe, name: str) -> Any:
    value: Any = recipe
    for step in name.split("."):
        value = getattr(value, step)
    return value


def _require_affordable(experiment: Experiment, arms: Sequence[Arm]) -> None:
    needed = {"tokens": sum(one.tokens for one in arms), "flops": sum(one.flops for one in arms)}
    for name, most in experiment.budget:
        if most is not None and needed[name] > most:
            raise BudgetError(
                f"experiment {experiment.name} would exceed its budget",
                found=f"{needed[name]:,.4g} {name} in {len(arms)} runs",
                expected=f"at most {most:,.4g}",
                remedy="use fewer seeds, sizes or tokens, or raise `budget` in the file",
            )
