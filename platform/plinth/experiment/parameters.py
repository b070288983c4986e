"""The file of an experiment: a question, a base recipe, and what its arms change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from plinth.corpus.protected.parameters import ProtectedSet
from plinth.experiment.mixture.confirm import ConfirmationQuestion
from plinth.experiment.mixture.swarm import Swarm
from plinth.experiment.sweep import Sweep
from plinth.experiment.value.question import SourceQuestion
from plinth.records import Frozen, Name

#: Becomes part of names of runs, asset keys and files.
ArmName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=24)]
#: Sizes that a ladder is fitted to, at least.
FEWEST_SIZES = 3
#: Keys of a recipe, as a file that extends it would have them.
Overlay = Mapping[str, Any]


class ExperimentBudget(Frozen):
    """What all runs of an experiment may need at most; one that would need more does not start."""

    tokens: int | None = Field(None, gt=0, description="Tokens trained on, of all runs.")
    flops: float | None = Field(None, gt=0, description="Training FLOPs of all runs (PaLM's convention).")


class LadderQuestion(Frozen):
    """Sizes as a ladder: a law is fitted to all but one, and foretells that one."""

    held_out: ArmName = Field(description="The size that is foretold before it is trained; the others are fitted.")


class Experiment(Frozen):
    """Arms x sizes x seeds of one recipe, measured on text that was fixed before and that no arm trains on."""

    name: ArmName
    question: str = Field(min_length=1, description="What the experiment is to answer, in a sentence.")
    recipe: str = Field(description="The recipe that the arms change: a path beside this file, or a packaged one.")
    base: ArmName = Field(description="The arm that every other is compared with.")
    test: Mapping[Name, ProtectedSet] = Field(
        min_length=1,
        description="Test text, by slice: JSONL in `input/`. It is a protected set of every arm, so that training text "
        "that holds it, word for word or nearly, is dropped in all of them before anything is trained.",
    )
    common: Overlay = Field(default_factory=dict, description="Keys for all arms.")
    arms: Mapping[ArmName, Overlay] = Field(min_length=1, description="What each arm changes; `{}` changes nothing.")
    sizes: Mapping[ArmName, Overlay] = Field({"one": {}}, min_length=1, description="Keys of each size of the runs.")
    seeds: tuple[int, ...] = Field(
        (1, 2, 3), min_length=1, description="Of initial weights and of the order of the text: a run of an arm each."
    )
    curve_points: int = Field(4, ge=1, le=64, description="Checkpoints of a run that are scored, the last among them.")
    stop_losing: bool = Field(
        False, description="Start no further seed of an arm that a sequential test says cannot win any more."
    )
    sweep: Sweep | None = Field(
        None, description="Values of one key, as learning rates or batches: an arm each, instead of `arms`."
    )
    swarm: Swarm | None = Field(
        None, description="Mixtures drawn around a prior: an arm each, instead of `arms`; a better one is proposed."
    )
    source: SourceQuestion | None = Field(
        None, description="A source, its price and its share: arms without and with it, instead of `arms`; a verdict."
    )
    confirms: ConfirmationQuestion | None = Field(
        None, description="A proposal of a swarm: arms of it and of its prior, instead of `arms`; whether it holds."
    )
    ladder: LadderQuestion | None = Field(
        None, description="Fit a scaling law to the sizes but one, and foretell that one; with a single arm."
    )
    budget: ExperimentBudget = ExperimentBudget()

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is there twice: its runs would be the same run")
        return seeds

    @model_validator(mode="after")
    def _known_base(self) -> Experiment:
        if self.base not in self.arms:
            raise ValueError(f"base: {self.base} is none of the arms {', '.join(self.arms)}")
        if self.ladder is None and len(self.arms) < 2:
            raise ValueError("arms: one alone is compared with nothing; expected two, or `ladder`")
        if self.confirms and (shared := sorted({*self.confirms.seeds} & {*self.seeds})):
            raise ValueError(f"seeds: {shared} chose the proposal, and cannot confirm it; expected others")
        if self.ladder is not None:
            if len(self.arms) > 1 or self.stop_losing:
                raise ValueError("ladder: a law is of one arm, and stops none")
            if self.ladder.held_out not in self.sizes or len(self.sizes) < FEWEST_SIZES + 1:
                raise ValueError(f"ladder: held_out is one of at least {FEWEST_SIZES + 1} sizes")
        return self
