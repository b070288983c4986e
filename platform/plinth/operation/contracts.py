"""Draft and signature of a run's launch contract, and its check before a job is submitted.

    draft     the contract of a run as it is configured now: its settings, mixture, budget and predicted curve
    sign      sign a draft as the role `owner`, as the next contract of the run
    require   check the contract before a submission; under a demo root, a missing contract is signed first
    outcome   what a run has spent and reached so far, next to its contract

The start of the ranks checks the contract again (`plinth.training.attempts.state`), on the machine that starts them.
"""

from __future__ import annotations

from typing import NamedTuple

from plinth.compute.context import Context
from plinth.errors import LineageError, PlinthError, RequestError
from plinth.operation import spending
from plinth.operation.admission import expected_cost_of_run
from plinth.operation.settlement import held_s
from plinth.storage.atomic import locked
from plinth.storage.state import Refs
from plinth.training import attempts, contract, job
from plinth.training.config import RunConfig, load, require_prepared, write
from plinth.training.contract import BucketShare, LaunchContract, RunBudget, SignedContract
from plinth.training.directory import RunDirectory
from plinth.training.predicted_curve import CurveOutcome, PredictedCurve, outcomes
from plinth.training.shared_run.shipping import give, refresh
from plinth.training.telemetry.timeline import timeline
from plinth.trust import dsse
from plinth.trust.dsse import OWNER, TRAINER
from plinth.trust.root import Trust


class ContractOutcome(NamedTuple):
    """Cost and losses of a run so far. `segments` has every finished segment of the predicted curve."""

    rank_hours: float
    segments: tuple[CurveOutcome, ...]

    @property
    def missed(self) -> tuple[CurveOutcome, ...]:
        """Segments with a loss outside the band."""
        return tuple(one for one in self.segments if not one.inside)


def draft(
    ctx: Context,
    config: RunConfig,
    before: SignedContract | None,
    *,
    curve: PredictedCurve | None = None,
    rank_hours: float | None = None,
    amend: str = "",
) -> LaunchContract:
    """Return the next contract of a run, unsigned, without owner and time.

    Args:
        before: contract in force, as `current` returns it.
        curve: predicted loss curve. A contract that amends another keeps its curve.
        rank_hours: budget; if None, the budget of the contract before, or the expected maximum cost.
        amend: reason to replace the contract in force.

    Raises:
        RequestError: the run has a contract and `amend` is empty, nothing bounds its cost, or the curve is for another
            run.
        ResumeError: the run's configuration was edited.
        LineageError: the run started without a contract.
    """
    if before is None and attempts.known(config.directory):
        contract.require_all(config.run_id, (), ("",))
    if (before is None) == bool(amend):
        raise RequestError(
            f"run {config.run_id} has {'no contract to amend' if before is None else 'a launch contract'}",
            found="--amend" if amend else f"contract {before.contract.number}" if before else "no contract",
            expected="no reason for the first contract, and a reason for each later one",
            remedy="omit --amend" if amend else "`--amend REASON` replaces the contract in force",
        )
    if before and curve is not None:
        raise RequestError(
            "a contract that replaces another keeps its predicted curve", found="--curve", remedy="omit --curve"
        )
    if before:
        contract.require_same_run(before.contract, config)
    else:
        require_prepared(config)
    promised = before.contract.curve if before else curve.require_run(config) if curve else None
    return LaunchContract(
        run=config.run_id,
        key=config.key,
        number=before.contract.number + 1 if before else 1,
        previous=before.sha256 if before else "",
        reason=amend,
        settings=contract.settings(config),
        mixture=_mixture(ctx, config),
        budget=_budget(ctx, config, rank_hours, before.contract.budget if before else None),
        curve=promised,
        owner="-",
        at=dsse.now(),
    )


def sign(ctx: Context, drafted: LaunchContract, owner: str | None = None) -> LaunchContract:
    """Sign a draft with this machine's key of the role `owner`, and write it to the run's folder and its bucket.

    Raises:
        SignatureError: this machine has no such key.
        LineageError: another contract of this number was signed meanwhile.
    """
    signer = Trust.of(ctx.workspace).signer(OWNER, owner)
    made = drafted.model_copy(update={"owner": signer.owner, "at": dsse.now()})
    run = RunDirectory(ctx.workspace.runs / made.run)
    path = run.contracts / f"{made.number:04d}.json"
    with locked(run.root / "contracts.lock"):
        refresh(run)  # another machine may have signed
        if path.exists():
            raise LineageError(f"contract {made.number} of run {made.run} exists", found=path, remedy="draft it again")
        dsse.write(path, contract.statement(made), signer)
        give(run, f"contracts/{path.name}")
    return made


def current(ctx: Context, config: RunConfig) -> SignedContract | None:
    """Return the newest contract of a run after verifying all its contracts, or None if it has none.

    Raises:
        LineageError: the run started before its contract, or a contract was removed or does not fit the others.
        SignatureError: a contract is not validly signed by the owner.
    """
    trust, run = Trust.of(ctx.workspace), config.directory
    earlier = attempts.known(run)
    records = attempts.opened(earlier, trust.authority(TRAINER), config.run_id) if earlier else ()
    envelopes, named = attempts.contracts(run), attempts.named(records)
    if not envelopes and not any(one.sha256 for one in named):
        return None
    found = contract.opened(envelopes, trust.authority(OWNER), config.run_id, named, dsse.now())
    contract.require_all(config.run_id, [one.sha256 for one in found], [one.sha256 for one in named])
    return found[-1] if found else None


def require(ctx: Context, config: RunConfig) -> LaunchContract | None:
    """Return the contract under which a job of a run may be submitted, or None if the run has and needs none.

    Under a demo root, a missing contract is signed first, without a predicted curve: all keys are on this machine.

    Raises:
        MissingError, LineageError, SignatureError: as `plinth.training.contract.require`.
        RequestError: the demo root cannot sign, because nothing bounds the cost of the run.
    """
    run = config.directory
    envelopes, earlier = attempts.contracts(run), attempts.known(run)
    promised = any(attempts.stated(one, config.run_id).contract for one in earlier)
    if not (envelopes or promised or config.contract == "required"):
        return None
    trust = Trust.of(ctx.workspace)
    if not envelopes and not earlier and trust.root.demo:
        sign(ctx, draft(ctx, config, None))
        envelopes = attempts.contracts(run)
    records = attempts.opened(earlier, trust.authority(TRAINER), config.run_id) if earlier else ()
    found = contract.require(config, envelopes, trust.authority(OWNER), attempts.named(records), dsse.now())
    return found.contract if found else None


def require_amended(ctx: Context, config: RunConfig) -> None:
    """Check that the contract of a run allows an amendment of its recipe, before the live job is stopped for it.

    If not, the amended configuration is written for the owner, who can sign it (`amended`).

    Raises: as `require`, and RecipeError if the amendment affects past steps.
    """
    job.check(config)
    try:
        require(ctx, config)
    except LineageError:
        write(config, config.directory.amended)
        raise


def amended(config: RunConfig) -> RunConfig:
    """Return the configuration for which the next contract of a run is drafted: the amended one, if one waits."""
    path = config.directory.amended
    waiting = load(path) if path.exists() else config
    return waiting if job.pending(waiting) else config


def outcome(config: RunConfig, promised: LaunchContract) -> ContractOutcome:
    """Return what a run has spent and reached so far."""
    history = timeline(config.directory.events)
    losses = [(int(event["tokens"]), event["loss"]) for event in history.steps.values()]
    segments = tuple(outcomes(promised.curve, losses)) if promised.curve else ()
    return ContractOutcome(rank_hours=held_s(config) / 3600, segments=segments)


def _budget(ctx: Context, config: RunConfig, rank_hours: float | None, before: RunBudget | None) -> RunBudget:
    settings = spending.load(ctx.workspace)
    price = settings.price(config.stopping.price_per_rank_hour)
    if rank_hours is not None:
        return RunBudget(rank_hours=rank_hours, price_per_rank_hour=price, reason="stated by the owner")
    if before is not None:
        return before
    bound = expected_cost_of_run(ctx, config)
    if bound.rank_s is None:
        raise RequestError(
            f"nothing bounds the cost of run {config.run_id}", found=bound.reason, expected="a budget in rank-hours",
            remedy="state it: `--rank-hours H`, or training.stopping.seconds in the recipe",
        )  # fmt: skip
    return RunBudget(rank_hours=bound.rank_s / 3600, price_per_rank_hour=price, reason=bound.reason)


def _mixture(ctx: Context, config: RunConfig) -> dict[str, BucketShare]:
    """Return the share and epochs of each stream of the run's mixture."""
    try:
        stats = Refs(ctx.workspace).load(config.mixture).stats
    except PlinthError as error:
        raise LineageError(
            f"the mixture of run {config.run_id} cannot be read", found=error.what, expected=config.mixture,
            remedy="run the recipe again up to the mixture: `plinth run`",
        ) from error  # fmt: skip
    total = max(1, int(stats["sequences"]))
    return {
        name: BucketShare(share=one["needed"] / total, epochs=one["epochs"]) for name, one in stats["buckets"].items()
    }
