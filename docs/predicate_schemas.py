"""JSON schemas of the predicates of Plinth's signed statements, generated from the models that write or read them.

    python docs/predicate_schemas.py     write docs/predicates/NAME.schema.json

The schema of `urn:plinth:NAME:v1` describes the `predicate` of an in-toto statement of that type. Statements of earlier
versions of Plinth are valid too: a field with a default may be absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from plinth.corpus.exclusions import EXCLUSIONS, Exclusion
from plinth.records import Frozen
from plinth.training import attempts, contract
from plinth.training.checkpoint import commit_record, mean_record
from plinth.trust import root, standalone_verify
from plinth.trust.log_record import RecordForm
from plinth.trust.signed_log import HeadStatement
from plinth_audit.papers.provider import ProviderStatement
from plinth_audit.papers.signed import PapersStatement
from plinth_audit.takedown import report
from plinth_audit.takedown.removal_statement import TakedownStatement
from plinth_extras.federated import exchange
from plinth_lab.loop.decision import TryDecision
from plinth_lab.loop.tries import Preregistration, Try, TryLog
from plinth_lab.qualification.record import QUALIFICATIONS, Qualification
from plinth_ops.checklists.review import CheckWaiver
from plinth_ops.gamedays import run_days
from plinth_ops.gamedays.gameday import GameDayRecord
from plinth_ops.gamedays.play import GAMEDAYS
from plinth_registry import approval, attestations, audit_log, candidate, judgement, releases
from plinth_registry.consumers import Consumer
from plinth_registry.exports import ExportStatement
from plinth_registry.exports.data import DataStatement
from plinth_registry.freeze import FeedEntry
from plinth_registry.gates.settings import policy_model
from plinth_registry.incidents import IncidentStatement
from plinth_registry.taint import TaintStatement

FOLDER = Path(__file__).parent / "predicates"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: Fields that reading a record adds to its body.
ADDED = ("number", "sha256", "at", "role", "signed_by")


def written(name: str, model: type[BaseModel], without: tuple[str, ...] = (), **more: Any) -> type[BaseModel]:
    """Return the model of a record's body, from the model that reads it: without fields that reading adds."""
    kept = {key: (one.annotation, one) for key, one in model.model_fields.items() if key not in without}
    return create_model(name, __base__=Frozen, __doc__=model.__doc__, **{**kept, **more})


def record(log: RecordForm, body: type[BaseModel]) -> type[BaseModel]:
    """Return the model of a log's record: its number, the SHA-256 of the record before, time, role, and body."""
    fields = {
        "number": (int, Field(ge=1)),
        "prior": (str | None, ...),
        "at": (str, ...),
        "role": (Literal[log.roles], ...),
        "body": (body, ...),
    }
    return create_model(f"{body.__name__}Record", __base__=Frozen, __doc__=f"Record of {log.name}/.", **fields)  # type: ignore[call-overload,no-any-return]


def attestation(kind: str) -> type[BaseModel]:
    """Return the model of an attestation of one kind."""
    return written(
        f"{kind.title().replace('_', '')}Attestation", attestations.Attestation, (), kind=(Literal[kind], ...)
    )


#: Body of a record of an experiment loop; which fields it has depends on `kind`.
TRY = create_model(
    "TryBody",
    __base__=Frozen,
    kind=(Literal["loop", "try", "preregistration", "analysis", "confirming analysis"], ...),
    name=(str, ...),
    follows=(str, Field(description="Name of the newest try before this record; empty if there is none.")),
    rule=(dict[str, Any] | None, None),
    recipe=(str | None, None),
    tried=(Try | None, Field(None, alias="try")),
    preregistration=(Preregistration | None, None),
    decision=(TryDecision | None, None),
    runs=(tuple[str, ...] | None, None),
    tokens=(float | None, None),
    flops=(float | None, None),
)

CONSUMER = written("EnrolledConsumer", Consumer, ("since",))
#: Bodies of the logs whose records are not flat.
BODIES: Mapping[RecordForm, type[BaseModel]] = {
    audit_log.MARKS: written("TaintBody", TaintStatement, (*ADDED, "standing")),
    audit_log.FEED: written("FeedBody", FeedEntry, ADDED),
    audit_log.CONSUMERS: create_model(
        "ConsumerBody",
        __base__=Frozen,
        action=(Literal["enrol", "leave"], ...),
        consumer=(CONSUMER, ...),  # type: ignore[call-overload]
    ),
    audit_log.LOGINS: approval.LoginStatement,
    audit_log.AUDIT: written("AuditBody", audit_log.AuditEntry, ADDED),
    audit_log.PROVIDERS: create_model("ProviderBody", __base__=Frozen, provider=(ProviderStatement, ...)),
    audit_log.INCIDENTS: IncidentStatement,
    audit_log.CHECK_WAIVERS: written("CheckWaiverBody", CheckWaiver, ("by", "at")),
    TryLog("NAME").log: TRY,
    GAMEDAYS: written("GameDayBody", GameDayRecord, (), passed=(bool, ...)),
    QUALIFICATIONS: Qualification,
}


class SignedGatePolicy(policy_model()):  # type: ignore[misc]
    """Gate policy; packages outside this repository add keys for their gates."""

    model_config = ConfigDict(extra="allow")


POLICY_RECORD = create_model(
    "PolicyRecord",
    __base__=Frozen,
    number=(int, Field(ge=1)),
    prior=(str | None, ...),
    at=(str, ...),
    policy=(SignedGatePolicy, ...),
)
GAME_DAY = create_model("GameDayStatement", __base__=Frozen, at=(str | None, None))
EMPTY = create_model("TimelineStatement", __base__=Frozen, __doc__="Nothing: the subject has the timeline's digest.")

#: Models by predicate type.
PREDICATES: Mapping[str, Any] = {
    root.PREDICATE: root.Root,
    EXCLUSIONS.predicate: Exclusion,
    attempts.PREDICATE: attempts.AttemptRecord,
    contract.PREDICATE: contract.LaunchContract,
    commit_record.PREDICATE: commit_record.Commit,
    commit_record.TIMELINE: EMPTY,
    mean_record.PREDICATE: mean_record.MeanRecord,
    candidate.EVIDENCE_PREDICATE: candidate.CandidateStatement,
    approval.PREDICATE: approval.ApprovalStatement,
    audit_log.POLICY_PREDICATE: POLICY_RECORD,
    judgement.WAIVER_PREDICATE: judgement.Waiver,
    audit_log.RELEASES.predicate: releases.ReleaseRecord,
    releases.HEAD_PREDICATE: HeadStatement,
    standalone_verify.EXPORT_TYPE: ExportStatement | DataStatement,
    standalone_verify.PAPERS_TYPE: PapersStatement,
    report.PREDICATE: TakedownStatement,
    exchange.CONTRIBUTION: exchange.Contribution,
    exchange.ROUND: exchange.Round,
    run_days.PREDICATE: GAME_DAY,
    **{attestations.predicate_type(kind): attestation(kind) for kind in attestations.KINDS},
    **{log.predicate: record(log, body) for log, body in BODIES.items()},
}


def schemas() -> Iterator[tuple[str, str]]:
    """Yield the file name and the content of every schema."""
    for kind, model in sorted(PREDICATES.items()):
        own = TypeAdapter(model).json_schema()
        content = {"$schema": DIALECT, "$id": kind, **own}
        name = kind.removeprefix("urn:plinth:").replace(":", ".")
        yield f"{name}.schema.json", json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write(folder: Path = FOLDER) -> None:
    """Write all schemas to a folder, and delete those of types that no longer exist."""
    folder.mkdir(exist_ok=True)
    found = dict(schemas())
    for path in folder.glob("*.schema.json"):
        if path.name not in found:
            path.unlink()
    for name, content in found.items():
        (folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    write()
