"""Launch contract of a run: what it may spend and what it must reach, signed by its owner before the run starts.

    runs/<run>/contracts/0001.json                     DSSE envelope, role `owner`, predicate `LaunchContract`
    runs/<run>/attempts/0001.json                      names the contract in force (`AttemptRecord.contract`)
    runs/<run>/checkpoints/step-00000100/attempts.json all contracts so far, next to the attempts

A contract has all settings of the run that decide what it trains, on what and where (`settings`). No rank starts if
these settings differ, so an edited recipe, mixture, budget or layout needs a new contract: number 2 names the digest of
number 1 and a reason, and keeps its predicted curve. The trainer's attempt dates the contract: an owner's key that is
revoked cannot sign for an earlier time, and a contract that is signed after the start is not in attempt 1.

Does not belong here: draft and budget of a contract (`plinth.operation.contracts`), the band (`predicted_curve`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError, model_validator

from plinth import fingerprint
from plinth.errors import LineageError, MissingError, PlinthError, SignatureError
from plinth.records import Frozen
from plinth.text import counted
from plinth.training.config import RunConfig, identity, require_identity
from plinth.training.directory import RunDirectory
from plinth.training.predicted_curve import PredictedCurve
from plinth.trust import dsse
from plinth.trust.dsse import Authority

PREDICATE: Final = "urn:plinth:launch-contract:v1"
#: Fields of a run's configuration that a contract leaves open: a path, a digest, and how the run is observed and
#: restarted.
OPEN: Final = frozenset({"workspace", "telemetry", "sinks", "reading", "supervision", "contract", "identity"})
#: Maximum number of differing settings that an error lists.
LISTED: Final = 5

Envelope = Mapping[str, Any]


class RunBudget(Frozen):
    """Maximum cost of all jobs of a run together."""

    rank_hours: float = Field(gt=0, allow_inf_nan=False, description="Rank-hours, from the start of each job.")
    price_per_rank_hour: float = Field(0.0, ge=0, description="Price of a rank-hour; 0 if it is unknown.")
    reason: str = Field(min_length=1, description="Source of the limit: the owner, or a prediction.")

    @property
    def money(self) -> float:
        """Maximum cost, in the currency of the price."""
        return self.rank_hours * self.price_per_rank_hour


class BucketShare(Frozen):
    """Part of a bucket's stream in the run."""

    share: float
    epochs: float


class LaunchContract(Frozen):
    """Promise of a run's owner: settings, data, topology, budget, mixture, predicted loss curve, retention."""

    run: str
    key: str = Field(description="Identity of the run: its parameters and data.")
    number: int = Field(ge=1)
    previous: str = Field("", description="SHA-256 of the previous contract's canonical envelope; empty for number 1.")
    reason: str = Field("", description="Reason for a contract that replaces another.")
    settings: Mapping[str, Any] = Field(
        description="Configuration of the run: model, optimizer, data digests, topology, checkpoints, stopping rules."
    )
    mixture: Mapping[str, BucketShare] = Field(description="Share and epochs of each stream.")
    budget: RunBudget
    curve: PredictedCurve | None = Field(description="Predicted loss curve; null if no curve is predicted.")
    owner: str = Field(min_length=1, description="Person or team that answers for the run: the owner of the key.")
    at: str = Field(description="Time of the signature in UTC, as ISO 8601.")

    @model_validator(mode="after")
    def _chained(self) -> LaunchContract:
        if (self.number == 1) == bool(self.previous) or bool(self.previous) != bool(self.reason):
            raise ValueError("a contract from number 2 on names the previous contract and a reason")
        return self

    @property
    def topology(self) -> str:
        """Launcher, ranks, nodes and degrees of the parallel layout, in words."""
        launch, layout = self.settings["launch"], self.settings["parallel"]
        degrees = [f"{name} {layout[name]}" for name in ("tensor", "pipeline", "sequence") if layout[name] > 1]
        ranks = f"{launch['ranks']} ranks on {counted(launch['nodes'], 'node')}"
        return ", ".join((launch["kind"], ranks, f"ZeRO-{layout['zero_stage']}", *degrees))

    @property
    def retention(self) -> str:
        """Checkpoints that the run keeps, in words."""
        kept = self.settings["checkpoints"]
        said = [f"the newest {kept['keep_last']}"]
        said += [f"every {kept['keep_every']} steps"] if kept["keep_every"] else []
        said += [f"the best {kept['keep_best']}"] if kept["keep_best"] else []
        return f"checkpoints: {', '.join(said)}" + (f", copied to {kept['upload']}" if kept["upload"] else "")

    @property
    def data(self) -> dict[str, str]:
        """Digests of the run's data, by asset."""
        own = {name: str(self.settings[name]) for name in ("mixture", "tokenizer", "heldout") if self.settings[name]}
        return own | {f"{name}/shards": str(digest) for name, digest in self.settings["shards"].items()}


class SignedContract(NamedTuple):
    """Verified contract, and the SHA-256 of its canonical envelope."""

    contract: LaunchContract
    sha256: str


class NamedAt(NamedTuple):
    """Contract that an attempt names, empty if none, and the start time of the attempt."""

    sha256: str
    at: str


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a run that its contract promises, as plain data."""
    dump = config.model_dump(mode="json", exclude=set(OPEN))
    return dict(json.loads(fingerprint.canonical(dump)))


def statement(contract: LaunchContract) -> dict[str, Any]:
    """Return the in-toto statement of a contract, about the settings of the run."""
    subject = {contract.run: fingerprint.digest(contract.settings)}
    return dsse.statement(PREDICATE, subject, contract.model_dump(mode="json"))


def known(run: RunDirectory) -> list[Envelope]:
    """Return the unverified contracts in a run's folder, in order."""
    return [dsse.envelope_of(path) for path in sorted(run.contracts.glob("[0-9]*.json"))]


def opened(
    envelopes: Sequence[Envelope], authority: Authority, run: str, attempts: Sequence[NamedAt], now: str
) -> tuple[SignedContract, ...]:
    """Verify a run's contracts: each is signed by the owner, names the previous one, and keeps its predicted curve.

    Args:
        attempts: starts of the run's ranks, in order. The first attempt that names a contract dates it and all earlier
            ones.
        now: time of contracts that no attempt names yet. An owner's key that was revoked before is not accepted.

    Raises:
        LineageError: a contract is missing, out of order, about another run, or has another curve.
        SignatureError: the named owner did not sign a contract, or the owner's key was revoked.
    """
    digests, at, found = [fingerprint.digest(one) for one in envelopes], now, list[SignedContract]()
    first = {one.sha256: one.at for one in reversed(attempts) if one.sha256}
    for number in range(len(envelopes), 0, -1):
        at = first.get(digests[number - 1], at)
        where = f"contract {number} of {run}"
        content = dsse.opened(envelopes[number - 1], authority, PREDICATE, where, at=at)
        record, owners = _record(content, where), dsse.signed_by(envelopes[number - 1], authority, where)
        if record.owner not in owners:
            raise SignatureError(
                f"{where} names another owner than its signer", found=record.owner, expected=", ".join(owners)
            )
        found.insert(0, SignedContract(record, digests[number - 1]))
    for at_index, one in enumerate(found):
        own, before = one.contract, found[at_index - 1] if at_index else None
        stated, expected = (own.run, own.number, own.previous), (run, at_index + 1, before.sha256 if before else "")
        if stated != expected or (before and (own.curve, own.key) != (before.contract.curve, before.contract.key)):
            raise LineageError(
                f"the contracts of run {run} do not form a chain",
                found=f"number {own.number} of {own.run}",
                expected=f"number {at_index + 1} of {run}, with the digest and the curve of the contract before",
                remedy="restore runs/<run>/contracts from a backup",
            )
    return tuple(found)


def require(
    config: RunConfig, envelopes: Sequence[Envelope], authority: Authority, attempts: Sequence[NamedAt], now: str
) -> SignedContract | None:
    """Return the contract under which the ranks of a run may start now, or None if the run has and needs no contract.

    Raises:
        MissingError: the recipe requires a contract, and there is none.
        LineageError: the run started before its contract, a contract was removed, or the settings differ from it.
        SignatureError: a contract is not validly signed by the owner.
    """
    named = [one.sha256 for one in attempts]
    if not envelopes and config.contract != "required" and not any(named):
        return None
    if not envelopes and not any(named):
        raise MissingError(
            f"run {config.run_id} has no launch contract",
            expected=f"a contract signed by the role {authority.role}, because training.contract is `required`",
            remedy=f"`plinth run contract sign {config.run_id}`, then run the command again",
        )
    found = opened(envelopes, authority, config.run_id, attempts, now)
    require_all(config.run_id, [one.sha256 for one in found], named)
    if different := differences(found[-1].contract, config):
        more = [f"{len(different) - LISTED} more"] if len(different) > LISTED else []
        older = any(not differences(one.contract, config) for one in found[:-1])  # such as a job that still runs
        undo = "`plinth run` with the recipe of contract " + str(len(found)) if older else "restore the settings"
        raise LineageError(
            f"run {config.run_id} is not what its launch contract promises",
            found="; ".join((*different[:LISTED], *more)),
            expected=f"the settings of contract {found[-1].contract.number}, signed by {found[-1].contract.owner}",
            remedy=f"{undo}, or sign these settings: `plinth run contract sign {config.run_id} --amend REASON`",
        )
    return found[-1]


def require_all(run: str, digests: Sequence[str], named: Sequence[str]) -> None:
    """Check that each attempt names a contract that is still there, and that no attempt returns to an earlier one."""
    if named and not named[0]:
        raise LineageError(
            f"run {run} started before its launch contract",
            found="an attempt without a contract",
            expected="a contract before the first attempt",
            remedy="train it as a new run, or without a contract",
        )
    places = [digests.index(one) if one in digests else -1 for one in named]
    if -1 in places or places != sorted(places) or (named and not digests):
        raise LineageError(
            f"a launch contract of run {run} was removed or replaced",
            found=", ".join(digest[:12] for digest in digests) or "no contract",
            expected=", ".join(digest[:12] for digest in dict.fromkeys(named)),
            remedy="restore runs/<run>/contracts from a backup, or from attempts.json of the newest checkpoint",
        )


def differences(contract: LaunchContract, config: RunConfig) -> list[str]:
    """Return the settings of a run that differ from its contract, each as `key: contract, run`."""
    try:
        promised = settings(_promised(contract, config))
    except (ValidationError, PlinthError) as error:
        return [f"the settings of the contract cannot be read: {str(error).splitlines()[0]}"]
    return list(_differences(promised, settings(config), ""))


def require_same_run(contract: LaunchContract, config: RunConfig) -> None:
    """Raise an error if an amendment would change what identifies the run.

    Raises:
        ResumeError: these settings are those of another run, for example after an edit of config.json.
    """
    expected, differing = identity(_promised(contract, config)), "; ".join(differences(contract, config)[:LISTED])
    require_identity(config, expected, f"contract {contract.number}", differing=differing)


def _promised(contract: LaunchContract, config: RunConfig) -> RunConfig:
    """Return the configuration that a contract promises, with the defaults of this version of Plinth."""
    given = {**contract.settings, "workspace": config.workspace, "contract": config.contract}
    given |= {name: getattr(config, name) for name in ("telemetry", "sinks", "reading", "supervision")}
    return RunConfig.model_validate(given)


def _differences(ours: Any, theirs: Any, where: str) -> Iterator[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted({*ours, *theirs}):
            yield from _differences(ours.get(name), theirs.get(name), f"{where}.{name}".lstrip("."))
    elif ours != theirs:
        yield f"{where}: {_short(ours)} in the contract, {_short(theirs)} in the run"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _record(content: Mapping[str, Any], where: str) -> LaunchContract:
    try:
        found = LaunchContract.model_validate(content["predicate"])
    except (ValidationError, KeyError) as error:
        raise LineageError(f"{where} is not a launch contract", found=error) from error
    if dsse.subjects(content) != {found.run: fingerprint.digest(found.settings)}:
        raise LineageError(f"{where} is about other settings than it states", found=dsse.subjects(content))
    return found
