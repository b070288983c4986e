"""Loop file, proposals, and the experiment that one try becomes.

A proposal's overlay is merged over the overlays that were accepted before it. The arm may not change a key that
determines the score, and may not train with more compute than the base.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from plinth import fingerprint
from plinth.corpus.protected.parameters import ProtectedSet
from plinth.errors import MissingError, RecipeError
from plinth.evaluation.statistics import spending_level
from plinth.recipe.yaml_lines import Lined, Position, Problem, dotted, parse, read, shown
from plinth.records import Frozen, Name
from plinth_jobs import recipes
from plinth_lab.experiments.arms import Arm, ArmName, Experiment, ExperimentBudget, Overlay, at_one_place, built
from plinth_lab.loop.decision import Prediction, least_seeds

#: Name of the arm without any proposal.
BASE = "base"
#: Names that a proposal cannot have: the base, and the folder of the log.
RESERVED = (BASE, "tries")
#: Keys of the file that may change after the first try, since no decision depends on them.
FREE = {"question", "proposals", "budget"}


class LoopBudget(ExperimentBudget):
    """Budget of a loop. The loop stops when the next try or analysis would exceed it."""

    tries: int = Field(gt=0, le=100_000, description="Most proposals that are tried.")


class Loop(Frozen):
    """Search over a stream of proposals, with one error budget for all of them."""

    name: ArmName
    question: str = Field(min_length=1, description="Question of the search, as a sentence.")
    recipe: str = Field(description="Base recipe: a path relative to this file, or a packaged recipe.")
    proposals: str = Field(description="File of proposals, relative to this file: `.jsonl`, or YAML with `proposals:`.")
    test: Mapping[Name, ProtectedSet] = Field(min_length=1, description="Test text by slice, as in an experiment.")
    common: Overlay = Field(default_factory=dict, description="Recipe keys that apply to all arms.")
    sizes: Mapping[ArmName, Overlay] = Field({"one": {}}, min_length=1, description="Recipe keys of each size.")
    size: str = Field("", description="Size of the tries; the first size by default.")
    confirm_size: str = Field("", description="Size of the confirming runs; the size of the tries by default.")
    seeds: int = Field(8, ge=3, le=64, description="Most seeds per try, and per confirmation.")
    base_runs: Literal["shared", "fresh"] = Field(
        "shared", description="`fresh` trains the base again for each try: proposals may then depend on all results."
    )
    alpha: float = Field(0.05, gt=0, le=0.5, description="Probability that a useless search accepts anything.")
    max_compute: float = Field(1.0, ge=1, description="Most tokens and FLOPs of an arm, relative to the base.")
    budget: LoopBudget

    @model_validator(mode="after")
    def _possible(self) -> Loop:
        for key in ("size", "confirm_size"):
            if (given := getattr(self, key)) and given not in self.sizes:
                raise ValueError(f"{key}: there is no size {given}; expected one of {', '.join(self.sizes)}")
        needed = least_seeds(spending_level(self.budget.tries, self.alpha))
        if self.seeds < needed:
            raise ValueError(f"seeds: try {self.budget.tries} could not be accepted; expected {needed} or more")
        return self

    @property
    def rule(self) -> dict[str, Any]:
        """Keys that must stay the same from the first try on."""
        return self.model_dump(mode="json", exclude=FREE)

    def size_of(self, confirming: bool) -> str:
        """Return the size of the tries, or of the confirming runs."""
        own = self.size or next(iter(self.sizes))
        return (self.confirm_size or own) if confirming else own


class RecipeProposal(Frozen):
    """Change of the recipe that a person or an agent proposes, with its prediction."""

    name: ArmName
    overlay: Overlay = Field(min_length=1, description="Recipe keys, merged over those of the base.")
    predicts: Prediction
    by: str = Field("", max_length=200, description="Author of the proposal.")
    why: str = Field("", max_length=2000, description="Reason for the proposal.")

    @field_validator("overlay")
    @classmethod
    def _recordable(cls, overlay: Overlay) -> Overlay:
        try:
            fingerprint.canonical(overlay)
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error
        return overlay


@dataclass(frozen=True)
class ArmPair:
    """Comparison of an arm with the base at one size: names, whole overlays and seeds."""

    base: str
    base_overlay: Overlay
    arm: str
    overlay: Overlay
    size: str
    seeds: tuple[int, ...]


def load(path: Path) -> Loop:
    """Load a loop file.

    Raises:
        MissingError: there is no such file.
        RecipeError: the file is invalid; the message names the line.
    """
    if not path.is_file():
        raise MissingError(f"no loop {path}", expected="a YAML file")
    lined = read(path, shown(path))
    problems = list(lined.problems)
    if not problems:
        try:
            return Loop.model_validate(lined.data)
        except ValidationError as error:
            problems += _problems(error, lined, Position(shown(path), 1))
    raise _invalid(f"the loop {shown(path)} is invalid", problems)


def proposals(loop: Loop, path: Path) -> tuple[RecipeProposal, ...]:
    """Return the proposals in the file of a loop, in order; none if there is no such file yet.

    Raises:
        RecipeError: a proposal is invalid, or two have the same name; the message names the line.
    """
    file = path.parent / loop.proposals
    if not file.is_file():
        return ()
    found: dict[str, RecipeProposal] = {}
    problems: list[Problem] = []
    for lined in _json_lines(file) if file.suffix == ".jsonl" else _yaml(file):
        top = lined.mark(("name",), Position(shown(file), 1))
        try:
            one = RecipeProposal.model_validate(lined.data) if not lined.problems else None
        except ValidationError as error:
            problems += _problems(error, lined, top)
            continue
        problems += lined.problems
        if one and one.name in (*found, *RESERVED):
            problems.append(Problem(top, "name", f"{one.name} is already taken; expected a new name"))
        elif one:
            found[one.name] = one
    if problems:
        raise _invalid(f"the proposals in {shown(file)} are invalid", problems)
    return tuple(found.values())


def _json_lines(file: Path) -> Iterator[Lined]:
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        mark = Position(shown(file), number)
        if not line.strip():
            continue
        try:
            data = json.loads(line, object_pairs_hook=fingerprint.unique)
        except (ValueError, RecursionError) as error:
            yield Lined(problems=[Problem(mark, "", f"not JSON: {error}")])
            continue
        if isinstance(data, dict):
            yield at_one_place(data, mark)
        else:
            yield Lined(problems=[Problem(mark, "", "expected a JSON object")])


def _yaml(file: Path) -> Iterator[Lined]:
    lined = parse(file.read_text(encoding="utf-8", errors="replace"), shown(file))
    given = lined.data.get("proposals", [])
    if lined.problems or set(lined.data) - {"proposals"} or not isinstance(given, list):
        problem = Problem(Position(shown(file), 1), "proposals", "expected one key, `proposals`, with a list")
        yield Lined(problems=lined.problems or [problem])
        return
    for at, data in enumerate(given):
        mark = lined.mark(("proposals", at), Position(shown(file), 1))
        problem = Problem(mark, "", "expected a mapping")
        yield at_one_place(data, mark) if isinstance(data, dict) else Lined(problems=[problem])


def _problems(error: ValidationError, lined: Lined, top: Position) -> list[Problem]:
    keys = [(tuple(step for step in one["loc"] if step != "[key]"), one) for one in error.errors(include_url=False)]
    return [Problem(lined.mark(key, top), dotted(key), one["msg"]) for key, one in keys]


def _invalid(what: str, problems: Sequence[Problem]) -> RecipeError:
    listed = "\n".join(f"  {problem}" for problem in problems)
    return RecipeError(f"{what}\n{listed}", remedy="correct the lines above; docs/loop.md describes every key")


def merged(old: Overlay, new: Overlay) -> dict[str, Any]:
    """Merge an overlay over another, so that the result changes a recipe as both would, one after the other.

    Raises:
        RecipeError: the second overlay sets keys below a key that the first removes.
    """
    found = dict(old)
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and key in old and before is None:
            raise RecipeError(f"the overlay sets keys below {key}, which an accepted proposal removes")
        found[key] = merged(before, value) if isinstance(value, Mapping) and isinstance(before, Mapping) else value
    return found


def compared(loop: Loop, path: Path, pair: ArmPair) -> tuple[Experiment, tuple[Arm, ...]]:
    """Return the experiment that compares an arm with the base, and its runs.

    Raises:
        RecipeError: the recipe of the arm is invalid, changes a key that determines the score, or needs more compute
            than the base.
    """
    data = {
        "name": loop.name,
        "question": loop.question,
        "recipe": loop.recipe,
        "base": pair.base,
        "test": {name: one.model_dump(mode="json", exclude_unset=True) for name, one in loop.test.items()},
        "common": dict(loop.common),
        "arms": {pair.base: dict(pair.base_overlay), pair.arm: dict(pair.overlay)},
        "sizes": {pair.size: dict(loop.sizes[pair.size])},
        "seeds": list(pair.seeds),
        "curve_points": 1,
    }
    experiment, arms = built(at_one_place(data, Position(f"{shown(path)}, {pair.arm}", 1)), path, recipes.FOLDER)
    base, arm = (next(one for one in arms if one.arm == name) for name in (pair.base, pair.arm))
    for what, own, most in (("tokens", arm.tokens, base.tokens), ("FLOPs", arm.flops, base.flops)):
        if own > most * loop.max_compute:
            raise RecipeError(
                f"arm {pair.arm} trains with more {what} than the base",
                found=f"{own:,.0f}",
                expected=f"at most {most * loop.max_compute:,.0f}",
            )
    return experiment, arms
