"""A proposal written back: as a recipe over the base, and as the experiment that confirms it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from plinth.errors import MissingError, StageError
from plinth.experiment.mixture.propose import MixtureProposal
from plinth.experiment.mixture.swarm import PRIOR, one_phase
from plinth.experiment.parameters import Experiment

SEEDS = 3


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


def recipe(experiment: Experiment, file: Path, proposal: MixtureProposal) -> str:
    """A recipe that extends that of the experiment and has the proposed mixture."""
    base = experiment.recipe
    beside = file.parent / base
    data = {
        "extends": str(beside.absolute()) if beside.is_file() else base,
        "mixture": one_phase(proposal.shares),
    }
    gain = f"{proposal.gain:.3g} bits per byte less than the prior (95%: {proposal.low:.3g} to {proposal.high:.3g})"
    return f"# Proposed by experiment {experiment.name}: {gain}, not confirmed yet.\n{_yaml(data)}"


def confirmation(experiment: Experiment, file: Path, proposal: MixtureProposal) -> str:
    """An experiment that trains the proposal and the prior with seeds that the swarm did not have."""
    beside = file.parent / experiment.recipe
    first = max(experiment.seeds) + 1
    given = experiment.model_dump(mode="json", include={"test", "common", "sizes"}, exclude_unset=True)
    data = {
        "name": f"{experiment.name}-confirm"[:24].rstrip("-"),
        "question": f"Is the mixture that {experiment.name} proposes better than its prior?",
        "recipe": str(beside.absolute()) if beside.is_file() else experiment.recipe,
        "base": PRIOR,
        **given,
        "arms": {
            PRIOR: {"mixture": one_phase(proposal.prior)},
            "proposed": {"mixture": one_phase(proposal.shares)},
        },
        "seeds": list(range(first, first + SEEDS)),
    }
    return _yaml(data)


def _yaml(data: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=110))
