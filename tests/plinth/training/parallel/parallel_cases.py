"""Every combination of ways to divide a run, and a small set of them that has every pair or triple of values.

    axis          one choice that a recipe makes: the ZeRO stage, the precision, …
    case          one value of every axis
    interaction   values of two or three axes; it is refused when every case that has it is

A case is refused by `plinth.training.parameters.parallel`, with a reason, or it trains as one plain process does.
`cover` picks cases that have every pair of values that is not refused, or every triple (a covering array; Cohen et al.,
IEEE TSE 23(7), 1997). Tests train the pairs, `train_parallel_cases.py` the triples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any, NamedTuple

from plinth.launch.parameters import Launch
from plinth.model.parameters import Model
from plinth.tokens.order.steps import BatchChange, LengthChange
from plinth.training.parameters.parallel import Parallel, problems

#: Uneven stages, grouped heads, gains of its own for queries and keys.
MODEL = Model(layers=3, dim=32, heads=4, kv_heads=2, ffn_dim=64, qk_norm=True)

SEQUENCE_TOKENS, ROWS = 32, 8


class Case(NamedTuple):
    """One value of every axis."""

    zero_stage: int = 0
    offload: str = "none"
    tensor: int = 1
    pipeline: int = 1
    sequence: int = 1
    recomputed: int = 0
    accumulated: int = 1
    precision: str = "fp32"
    compile: bool = False
    schedule: str = "constant"

    @property
    def ranks(self) -> int:
        """Two, or what the degrees ask for."""
        return max(2, self.tensor * self.pipeline * self.sequence)

    @property
    def block(self) -> Parallel:
        """The `parallel:` block of the recipe."""
        fields = {name: getattr(self, name) for name in ("zero_stage", "offload", "tensor", "pipeline", "sequence")}
        return Parallel(**fields, activation_checkpointing=self.recomputed, compile=self.compile)

    @property
    def name(self) -> str:
        """Its values that are not the usual ones."""
        usual = Case()._asdict()
        return ", ".join(
            word(axis, value) for axis, value in self._asdict().items() if axis == "zero_stage" or value != usual[axis]
        )

    @property
    def model(self) -> Model:
        """The model; where blocks are compiled with one layer a stage, because compiling takes the time."""
        return MODEL.model_copy(update={"layers": self.pipeline}) if self.compile else MODEL

    def fields(self) -> dict[str, Any]:
        """Return the fields of a `RunConfig`. A batch schedule doubles the batch in step 2, a length schedule the rows'
        length."""
        data = self.ranks // self.block.model_ranks
        first = ROWS // 2 if self.schedule == "batch" else ROWS
        fields: dict[str, Any] = {
            "parallel": self.block,
            "launch": Launch(ranks=self.ranks),
            "precision": self.precision,
            "model": self.model,
            "sequence_tokens": SEQUENCE_TOKENS,
            "global_batch_sequences": first,
            "micro_batch_sequences": first // data // self.accumulated,
        }
        if self.schedule == "batch":
            fields["batch_schedule"] = (BatchChange(from_step=2, global_batch_sequences=ROWS),)
        if self.schedule == "length":
            short = LengthChange(from_tokens=0, sequence_tokens=SEQUENCE_TOKENS // 2)
            fields["length_schedule"] = (short, LengthChange(from_step=2, sequence_tokens=SEQUENCE_TOKENS))
        return fields

    def refusals(self) -> list[str]:
        """The reasons for which the recipe is refused."""
        size = {"ranks": self.ranks, "sequence_tokens": SEQUENCE_TOKENS}
        return [message for _, message in problems(self.block, self.model, precision=self.precision, **size)]


AXES: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 2, 3),
    "offload": ("none", "optimizer", "parameters"),
    "tensor": (1, 2),
    "pipeline": (1, 2),
    "sequence": (1, 2),
    "recomputed": (0, 1),
    "accumulated": (1, 2),
    "precision": ("fp32", "bf16", "fp16"),
    "compile": (False, True),
    "schedule": ("constant", "batch", "length"),
}

#: Values of some axes, by name.
Interaction = tuple[tuple[str, Any], ...]


def word(axis: str, value: Any) -> str:
    """A value in words."""
    words = {"zero_stage": f"ZeRO-{value}", "offload": f"{value} offloaded", "precision": str(value).upper()}
    words |= {"schedule": f"{value} schedule", "accumulated": "accumulation", "recomputed": "recomputation"}
    return words.get(axis, axis)


@cache
def cases() -> tuple[Case, ...]:
    """Every case, refused or not; the simplest first."""
    return tuple(sorted(map(Case._make, product(*AXES.values())), key=lambda case: (case.ranks, case.compile)))


@cache
def feasible() -> tuple[Case, ...]:
    """The cases that are not refused."""
    return tuple(case for case in cases() if not case.refusals())


def interactions(strength: int) -> Iterator[Interaction]:
    """All values of every `strength` axes."""
    for names in combinations(AXES, strength):
        for values in product(*(AXES[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def phrase(interaction: Interaction) -> str:
    """An interaction in words."""
    return " + ".join(word(axis, value) for axis, value in interaction)


@cache
def refused(strength: int) -> dict[Interaction, str]:
    """Return interactions without a case, and the reason; those implied by a smaller refused interaction are
    omitted."""
    have = covered(feasible(), strength)
    smaller = [set(known) for less in range(2, strength) for known in refused(less)]
    new = (each for each in interactions(strength) if each not in have)
    return {each: reason(each) for each in new if not any(known <= set(each) for known in smaller)}


def within(case: Case, strength: int) -> set[Interaction]:
    """The interactions that a case has."""
    return set(combinations(zip(AXES, case, strict=True), strength))


def covered(chosen: Iterable[Case], strength: int) -> set[Interaction]:
    """The interactions that some of these cases have."""
    return set().union(*(within(case, strength) for case in chosen))


def cover(chosen: Sequence[Case], strength: int) -> list[Case]:
    """`chosen`, and cases of the fewest ranks and compilations until every interaction that can be is there. Greedy:
    the case that adds most comes next, the first of equals."""
    result, left = list(chosen), covered(feasible(), strength) - covered(chosen, strength)
    for tier in sorted({_cost(case) for case in feasible()}):
        candidates = {case: within(case, strength) for case in feasible() if _cost(case) == tier}
        while candidates:
            best = max(candidates, key=lambda case: len(candidates[case] & left))
            if not candidates[best] & left:
                break
            result.append(best)
            left -= candidates.pop(best)
    return result


def _cost(case: Case) -> tuple[int, bool]:
    return case.ranks, case.compile


def reason(interaction: Interaction) -> str:
    """Why an interaction is refused, by the case of it that is nearest to running."""
    wanted = set(interaction)
    found = (case.refusals() for case in cases() if wanted <= set(zip(AXES, case, strict=True)))
    return min(found, key=len)[0]
