"""Recipe section `training.federated`, its training hook, and the exchange between sites.

Sites exchange signed records and tensor files. A record names its tensor files by digest.

    contributions/00003/oslo.json   a site's weights after its inner steps, for round 3; written once
    rounds/00003.json               the outcome of round 3; written once and last, which commits the round
    store/                          the files of tensors, in the layout of a workspace's store; old ones are pruned

Records are in-toto statements in DSSE envelopes, signed by the role `trainer`. They contain names, numbers and
digests. Each machine verifies the SHA-256 of a file when it first reads the file.

Does not belong here: the outer step and the choice of contributions (coordinator).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from plinth.errors import CheckpointError, SignatureError
from plinth.extensions import late
from plinth.records import Blob, Frozen, Name
from plinth.sections import RecipeSection
from plinth.storage.shared_store import open_store
from plinth.storage.workspace import Workspace, folder_of
from plinth.training.hooks import TrainingHook
from plinth.trust import dsse
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust

if TYPE_CHECKING:
    from plinth.training.telemetry.timeline import History


class Federated(Frozen):
    """Federation of runs that train the same model on their own text and average weights every `inner_steps`."""

    site: Name = Field(description="Name of this run's site.")
    sites: tuple[Name, ...] = Field(min_length=1, description="Names of all sites, including this run's site.")
    exchange: str = Field(
        pattern=r"^(/|s3://[^/]+)",
        description="Absolute folder, or `s3://bucket/prefix`, that all sites and the coordinator can reach.",
    )
    inner_steps: int = Field(500, ge=1, description="Training steps of a site between two rounds.")
    outer_lr: float = Field(
        0.7,
        gt=0,
        description="Learning rate of the outer step. With 1 and no momentum, the new weights are the mean of the "
        "sites' weights.",
    )
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of the outer step.")

    @model_validator(mode="after")
    def _one_of_the_sites(self) -> Self:
        if self.site not in self.sites or len(set(self.sites)) != len(self.sites):
            raise ValueError(f"sites {', '.join(self.sites)} must include site {self.site}, without duplicates")
        return self

    def ends_round(self, step: int, total_steps: int) -> bool:
        """Return True if weights are averaged after this step. At step 0, all sites get equal initial weights."""
        return step % self.inner_steps == 0 or step == total_steps


SECTION = RecipeSection(
    name="training.federated", model=Federated, description="Federated training; disabled by default."
)
STATE = RecipeSection(name="run.federated", model=Federated, description="Federation settings of the run.")


def facts(history: History | None, monitor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step, round number, sites and adopted weights of each round that the run took part in."""
    if history is None:
        return {}
    rounds = {event["step"]: event for event in history.of("averaged")}
    kept = [{key: rounds[step][key] for key in ("step", "round", "sites", "common")} for step in sorted(rounds)]
    return {"federated": kept}


HOOK = TrainingHook(
    name="federated",
    params=Federated,
    rank=late("plinth_extras.federated.site:Site"),
    facts=facts,
    unidentified=("exchange",),
    position=2,
)

CONTRIBUTION = "urn:plinth:federated-contribution:v1"
ROUND = "urn:plinth:federated-round:v1"


class Contribution(Frozen):
    """FP32 master weights of a site after its inner steps, in one file per rank."""

    site: Name
    round: int = Field(ge=0)
    base: str = Field(description="SHA-256 of the site's base weights; empty in round 0.")
    step: int = Field(ge=0, description="Step of the site's run.")
    goes_back_to: int = Field(0, ge=0, description="Oldest round whose weights the run may adopt again.")
    ends: bool = Field(description="True if the site's run has ended.")
    files: tuple[Blob, ...] = Field(min_length=1)
    at: str


class Round(Frozen):
    """Outcome of a federated round. Every site continues from its common weights."""

    round: int = Field(ge=0)
    before: str = Field(description="SHA-256 of the previous round's record; empty in round 0.")
    common: Blob
    momentum: Blob | None = None
    taken: Mapping[str, str] = Field(description="SHA-256 of each accepted contribution's record, by site.")
    refused: Mapping[str, str] = Field(description="Reason for each rejected contribution, by site.")
    missing: tuple[str, ...] = Field(description="Sites that did not send a contribution in time.")
    ended: tuple[str, ...] = Field(description="Sites whose runs have ended.")
    outer_lr: float
    outer_momentum: float
    at: str


class SignedRecord(NamedTuple):
    """Bytes of a signed record, and their SHA-256."""

    data: bytes
    sha256: str


Record = TypeVar("Record", Contribution, Round)


class Exchange:
    """Exchange of signed records and weights, in a folder or under an `s3://` prefix.

    Records are signed and verified with `trust`.
    """

    def __init__(self, place: str, trust: Trust) -> None:
        at = Workspace(folder_of(place))
        self.store, self._trust = open_store(at), trust
        self._contributions, self._rounds = at.objects("contributions"), at.objects("rounds")

    def newest(self) -> int:
        """Return the number of the last committed round; -1 if there is none."""
        return max((int(name.removesuffix(".json")) for name in self._rounds.names()), default=-1)

    def round(self, number: int) -> tuple[Round, SignedRecord]:
        """Return a committed round and its record, after verifying the signature.

        Raises:
            CheckpointError: the round is not committed, or its record is not signed by the role `trainer`.
        """
        found = self._rounds.get(_round_name(number))
        where = self._rounds.where(_round_name(number))
        if found is None:
            raise CheckpointError(f"round {number} is not committed", expected=where)
        return self.opened_round(found.data, where), SignedRecord(found.data, hashlib.sha256(found.data).hexdigest())

    def opened_round(self, data: bytes, where: str) -> Round:
        """Parse the bytes of a round's record, after verifying the signature.

        Raises:
            CheckpointError: the record is not signed by the role `trainer`.
        """
        return self._opened(Round, data, ROUND, where)

    def commit(self, made: Round) -> bool:
        """Write a round's record, which commits the round. Return False if another coordinator has already committed
        it."""
        subjects = {"common.safetensors": made.common.sha256}
        if made.momentum is not None:
            subjects["momentum.safetensors"] = made.momentum.sha256
        return self._rounds.put(_round_name(made.round), self._sealed(made, ROUND, subjects), None)

    def send(self, made: Contribution) -> bool:
        """Write the record of a contribution. Return False if the site already sent a contribution to this round."""
        subjects = {f"rank-{rank:05d}.safetensors": file.sha256 for rank, file in enumerate(made.files)}
        data = self._sealed(made, CONTRIBUTION, subjects)
        return self._contributions.put(_contribution_name(made.round, made.site), data, None)

    def has_sent(self, number: int, site: str) -> bool:
        """Return True if a site has sent a contribution to a round."""
        return self._contributions.get(_contribution_name(number, site)) is not None

    def contribution(self, number: int, site: str) -> tuple[Contribution, SignedRecord] | None:
        """Return a site's contribution to a round after verifying its signature, or None if the site has not sent one
        yet.

        Raises:
            CheckpointError: the record is not signed by the role `trainer`, or is for another site or round.
        """
        name = _contribution_name(number, site)
        found = self._contributions.get(name)
        if found is None:
            return None
        made = self._opened(Contribution, found.data, CONTRIBUTION, self._contributions.where(name))
        if (made.site, made.round) != (site, number):
            raise CheckpointError(
                f"{self._contributions.where(name)} is another contribution",
                found=f"site {made.site}, round {made.round}",
                expected=f"site {site}, round {number}",
            )
        return made, SignedRecord(found.data, hashlib.sha256(found.data).hexdigest())

    def contributions(self, number: int) -> list[Contribution]:
        """Return all contributions to a round with valid signatures."""
        found = []
        for name in self._contributions.names(f"{number:05d}/"):
            with suppress(CheckpointError):
                made = self.contribution(number, name.rpartition("/")[2].removesuffix(".json"))
                found += [] if made is None else [made[0]]
        return found

    def _sealed(self, made: Contribution | Round, kind: str, subjects: Mapping[str, str]) -> bytes:
        content = dsse.statement(kind, subjects, made.model_dump(mode="json"))
        return json.dumps(dsse.seal(content, self._trust.signer(TRAINER)), indent=1, sort_keys=True).encode()

    def _opened(self, model: type[Record], data: bytes, kind: str, where: str) -> Record:
        try:
            content = dsse.opened(json.loads(data), self._trust.authority(TRAINER), kind, where)
            return model.model_validate(content["predicate"])
        except (SignatureError, ValidationError, ValueError) as error:
            raise CheckpointError(
                f"{where} is ignored",
                found=error.brief if isinstance(error, SignatureError) else error,
                expected="a record signed by a trainer under this root of trust",
            ) from error


def now() -> str:
    """Return the current UTC time in ISO 8601 format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _round_name(number: int) -> str:
    return f"{number:05d}.json"


def _contribution_name(number: int, site: str) -> str:
    return f"{number:05d}/{site}.json"


# Pruning of tensors that are no longer needed:
#
#     contributions        until the round is committed
#     momentum             until the next round is committed
#     common weights       while a site may adopt them again after a rollback or in an audit
#
# Each contribution has the oldest round whose common weights its run may adopt again. All rounds since the minimum are
# kept, and all rounds if a site has not sent any. Signed records are kept: they are small, and name the averaged files
# by digest.
#
# An interrupted pruning is continued by the next one, which starts from the oldest round with files. Does not belong
# here: the time of pruning (coordinator).


def prune(exchange: Exchange, sites: Iterable[str]) -> int:
    """Remove tensor files that no site needs; return the number of freed bytes.

    Args:
        sites: sites with runs that may return to a checkpoint.

    Raises:
        CheckpointError: a committed round is not signed by the role `trainer`.
        StorageError: a file cannot be removed.
    """
    newest = exchange.newest()
    oldest = min((_goes_back_to(exchange, site, newest) for site in sites), default=newest)
    last = exchange.round(newest)[0] if newest >= 0 else None
    kept = {exchange.round(number)[0].common for number in range(max(0, oldest), newest + 1)}
    kept |= {file for made in exchange.contributions(newest + 1) for file in made.files}
    kept |= {last.momentum} if last is not None and last.momentum is not None else set()

    def sent(number: int) -> list[Blob]:
        files = [file for made in exchange.contributions(number) for file in made.files]
        momentum = exchange.round(number)[0].momentum
        return files if momentum is None else [*files, momentum]

    def common(number: int) -> list[Blob]:
        return [exchange.round(number)[0].common]

    return _sweep(exchange, newest, sent, kept) + _sweep(exchange, oldest - 1, common, kept)


def _goes_back_to(exchange: Exchange, site: str, newest: int) -> int:
    """Return the oldest round whose common weights a site may adopt again, according to its last contribution."""
    for number in range(newest, -1, -1):
        if site in exchange.round(number)[0].taken:
            found = exchange.contribution(number, site)
            return 0 if found is None else min(found[0].goes_back_to, number)
    return 0


def _sweep(exchange: Exchange, last: int, named: Callable[[int], list[Blob]], kept: set[Blob]) -> int:
    """Remove the files of rounds up to `last` that are not in `kept`, beginning with the oldest round.

    The search for files goes from `last` to earlier rounds. It stops at a round without files, because all rounds
    before it are already pruned.
    """
    left = list[Blob]()
    for number in range(last, -1, -1):
        there = [blob for blob in named(number) if blob not in kept and exchange.store.has(blob)]
        if not there and number < last:
            break
        left = [*there, *left]
    gone = list(dict.fromkeys(left))
    for blob in gone:
        exchange.store.remove(blob)
    return sum(blob.bytes for blob in gone)
