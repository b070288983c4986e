"""A proposal written back: as a recipe over the base, and as the experiment that confirms it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from plinth.errors import MissingError, StageError
from plinth.experiment.mixture.confirm import HOLDS, ConfirmationOutcome, ConfirmationQuestion
from plinth.experiment.mixture.propose import MixtureProposal
from plinth.experiment.mixture.swarm import one_phase
from plinth.experiment.parameters import Experiment

SEEDS = 3
CONFIRM, LONGEST = "-confirm", 24


def required(name: str, proposal: MixtureProposal | None) -> MixtureProposal:
    """The proposal of an experiment.

    Raises:
        MissingError: it has no swarm.
        StageError: its runs support no claim.
    """
    if proposal is None:
        raise MissingError(f"experiment {name} draws no mixtures", expected="a key `swarm` in its file")
    if proposal.refusal:
        raise StageError(
            f"the runs of {name} propose no mixture",
            found=proposal.refusal,
            remedy="more runs (`swarm.count`), longer ones, or more test text",
        )
    return proposal


def recipe(
    experiment: Experiment, file: Path, proposal: MixtureProposal, outcome: ConfirmationOutcome | None = None
) -> str:
    """A recipe that extends that of the experiment and has the proposed mixture; its first line says how sure it is.

    Raises:
        StageError: new runs did not confirm the proposal.
    """
    if outcome is not None and outcome.status != HOLDS:
        raise StageError(
            f"the proposal of {experiment.name} is {outcome.status}",
            found=outcome.reason,
            remedy="more seeds in the confirming experiment, or a larger swarm; a person may still write the mixture",
        )
    base = experiment.recipe
    beside = file.parent / base
    data = {
        "extends": str(beside.absolute()) if beside.is_file() else base,
        "mixture": one_phase(proposal.shares),
    }
    gain = f"{proposal.gain:.3g} bits per byte less than the prior (95%: {proposal.low:.3g} to {proposal.high:.3g})"
    known = f"confirmed by new runs: {outcome.reason}." if outcome else f"{gain}, not confirmed yet."
    return f"# Proposed by experiment {experiment.name}: {known}\n{_yaml(data)}"


def name_of(experiment: str) -> str:
    """Name of the experiment that confirms the proposal of a swarm."""
    return f"{experiment[: LONGEST - len(CONFIRM)].rstrip('-')}{CONFIRM}"


def question(experiment: Experiment, proposal: MixtureProposal, answer: str) -> ConfirmationQuestion:
    """What is to be confirmed; `answer` is the digest of the effects that the proposal is of."""
    return ConfirmationQuestion(
        experiment=experiment.name, answer=answer, seeds=experiment.seeds, prior=proposal.prior,
        shares=proposal.shares, gain=proposal.gain, low=proposal.low, high=proposal.high,
    )  # fmt: skip


def confirmation(experiment: Experiment, file: Path, proposal: MixtureProposal, answer: str) -> str:
    """An experiment that trains the proposal and the prior with seeds that the swarm did not have.

    Args:
        answer: digest of the effects that the proposal is of.
    """
    beside = file.parent / experiment.recipe
    first = max(experiment.seeds) + 1
    given = experiment.model_dump(mode="json", include={"test", "common", "sizes"}, exclude_unset=True)
    data = {
        "name": name_of(experiment.name),
        "question": f"Is the mixture that {experiment.name} proposes better than its prior?",
        "recipe": str(beside.absolute()) if beside.is_file() else experiment.recipe,
        **given,
        "confirms": question(experiment, proposal, answer).model_dump(mode="json"),
        "seeds": list(range(first, first + SEEDS)),
    }
    return _yaml(data)


def _yaml(data: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=110))
