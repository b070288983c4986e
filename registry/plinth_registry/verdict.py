"""Verdicts: what the gates said of a candidate, as a signed verification summary that any in-toto tool reads.

    models/<12>.<candidate 12>.verdict.json    DSSE envelope, signed as `promoter`
    models/<12>.<candidate 12>.refused.json    of a later promotion that was refused: the verdict that passed stays

The predicate is SLSA's Verification Summary Attestation v1 (https://slsa.dev/spec/v1.0/verification_summary): who
verified what, when, under which policy, from which attestations. Gates with their reasons stand in an extension field
of ours, which other readers pass over.

Levels say no more than is known: provenance is there and signed, but the trainer states it of its own run, which is
build level 1. Levels of our own begin with `PLINTH_`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.trust import dsse
from plinth.trust.authority import PROMOTER
from plinth.trust.root import Trust
from plinth_registry.candidate import Candidate
from plinth_registry.gates.result import GateResult, is_open
from plinth_registry.policy import SignedPolicy

PREDICATE: Final = "https://slsa.dev/verification_summary/v1"
#: Field of the predicate with our gates; its name is a URI, as in-toto asks of extensions.
GATES: Final = "urn:plinth:gates:v1"
VERIFIER: Final = "urn:plinth:registry"
SLSA_VERSION: Final = "1.0"


def predicate(
    found: Candidate,
    policy: SignedPolicy,
    results: Sequence[GateResult],
    inputs: Mapping[str, str],
    at: datetime,
    faults: Sequence[str] = (),
) -> dict[str, Any]:
    """The verification summary of a candidate.

    Args:
        inputs: SHA-256 of the signed statements that were read, by URI.
        faults: statements that did not count, in words.
    """
    passed = is_open(results)
    return {
        "verifier": {"id": VERIFIER, "version": {"plinth": _version()}},
        "timeVerified": at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "resourceUri": f"plinth:///models/{found.directory.name}",
        "policy": {
            "uri": f"plinth:///policies/{policy.policy.release}/{policy.policy.version}",
            "digest": {"sha256": policy.digest},
        },
        "inputAttestations": [{"uri": uri, "digest": {"sha256": own}} for uri, own in sorted(inputs.items())],
        "verificationResult": "PASSED" if passed else "FAILED",
        "verifiedLevels": list(levels(results)),
        "slsaVersion": SLSA_VERSION,
        GATES: {
            "results": [_result(one) for one in results],
            "not_asked": dict(policy.policy.without),
            "did_not_count": list(faults),
        },
    }


def levels(results: Sequence[GateResult]) -> tuple[str, ...]:
    """What was verified, and no more."""
    by_name = {result.name: result.passed for result in results}
    found = ["SLSA_BUILD_LEVEL_1"] if by_name.get("signature") and by_name.get("lineage") else []
    if not is_open(results):
        return (*found, "FAILED")
    waived = any(result.state == "waived" for result in results)
    return (*found, "PLINTH_GATES_PASSED_WITH_WAIVERS" if waived else "PLINTH_GATES_PASSED")


def write(
    ctx: Context,
    found: Candidate,
    policy: SignedPolicy,
    results: Sequence[GateResult],
    inputs: Sequence[Path],
    faults: Sequence[str] = (),
) -> Path:
    """Sign the verdict next to the candidate's directory; the newest replaces an earlier one, but none that passed is
    replaced by one that did not: exports of the release need it.

    Raises:
        SignatureError: no key as `promoter` on this machine.
    """
    read = {_uri(ctx, one): hashlib.sha256(dsse.bytes_of(one)).hexdigest() for one in inputs}
    content = predicate(found, policy, results, read, datetime.now(UTC), faults)
    signer = Trust.of(ctx.workspace).signer(PROMOTER)
    target = path(found)
    refused = target.with_name(target.name.replace(".verdict.", ".refused."))
    refused.unlink(missing_ok=True)
    if content["verificationResult"] != "PASSED" and _passed(ctx, found):
        target = refused
    dsse.write(target, dsse.statement(PREDICATE, found.subjects, content), signer)
    return target


def read(ctx: Context, found: Candidate) -> dict[str, Any]:
    """The signed verdict of a candidate: the predicate.

    Raises:
        SignatureError: there is none, it was changed, or it is of another candidate.
    """
    where = path(found)
    content = dsse.read(where, Trust.of(ctx.workspace).authority(PROMOTER), PREDICATE)
    if dsse.subjects(content) != found.subjects:
        raise SignatureError(
            f"{where} is the verdict of another candidate", found=dsse.subjects(content), expected=found.subjects
        )
    return dict(content["predicate"])


def _passed(ctx: Context, found: Candidate) -> bool:
    try:
        return bool(read(ctx, found)["verificationResult"] == "PASSED")
    except SignatureError:
        return False


def path(found: Candidate) -> Path:
    """Where the verdict of a candidate lies."""
    return found.directory.with_name(f"{found.directory.name}.{found.key[:12]}.verdict.json")


def _result(one: GateResult) -> dict[str, Any]:
    return {"gate": one.name, "result": one.state, "reason": one.reason, "waiver": one.waived, "evidence": one.evidence}


def _uri(ctx: Context, file: Path) -> str:
    root = ctx.workspace.root
    return f"plinth:///{file.relative_to(root).as_posix()}" if file.is_relative_to(root) else f"plinth:///{file.name}"


def _version() -> str:
    try:
        return version("plinth")
    except PackageNotFoundError:
        return "unknown"
