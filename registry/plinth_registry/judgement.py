"""Evaluation of a candidate's gates by the current signed policy, with signed waivers. The evidence is read again for
each evaluation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError, field_validator

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, PlinthError, SignatureError, TrustError
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth.trust import dsse
from plinth.trust.dsse import POLICY, PROMOTER, now, time_of
from plinth.trust.root import Trust
from plinth_registry import attestations, evidence, policy, signing
from plinth_registry import candidate as candidates
from plinth_registry.candidate import Candidate
from plinth_registry.gates import GateResult, blocking, evaluate, is_open
from plinth_registry.gates.facts import Evidence
from plinth_registry.gates.settings import SHORTEST_REASON, always
from plinth_registry.papers import model_card
from plinth_registry.policy import SignedPolicy
from plinth_registry.registration import scores_text, show_gates

# Waivers: the release owner waives one gate for one candidate until a date, with a reason.
#
#     policies/<release>/waivers/<candidate 12>.<gate>.json    DSSE envelope, signed as `policy`
#
# A waiver names candidate, gate and policy. It is invalid after its date, under another policy, for a gate that cannot
# be waived (`gates.settings.always`), or if this machine has seen a later one. The waived gate still shows as failed.

WAIVER_PREDICATE: Final = "urn:plinth:gate-waiver:v1"


class Waiver(Frozen):
    """Signed waiver of one gate for one candidate, with a reason and an expiry time (UTC, ISO 8601)."""

    release: str
    gate: str
    candidate: str = Field(pattern=r"^[0-9a-f]{64}$")
    policy: str = Field(pattern=r"^[0-9a-f]{64}$")
    reason: str = Field(min_length=SHORTEST_REASON)
    expires: str
    by: str
    at: str

    @field_validator("expires", "at")
    @classmethod
    def _with_a_zone(cls, given: str) -> str:
        _ = time_of(given)
        return given

    @property
    def said(self) -> str:
        """Text about the waiver, which is part of its gate's result."""
        return f"waived by {self.by} until {self.expires}: {self.reason}"


class Waivers(NamedTuple):
    """Valid waivers of a candidate by gate, and the reasons why other waivers are invalid."""

    valid: Mapping[str, Waiver]
    faults: tuple[str, ...]

    @property
    def said(self) -> dict[str, str]:
        """Text of each valid waiver by gate, as input for `gates.evaluate`."""
        return {gate: waiver.said for gate, waiver in self.valid.items()}


def sign_waiver(
    ctx: Context, policy: SignedPolicy, gate: str, candidate: str, reason: str, expires: str, owner: str | None = None
) -> Waiver:
    """Sign a waiver. A later waiver of the same gate and candidate replaces it.

    Raises:
        GateError: the policy does not require this gate, the gate cannot be waived, the reason is missing, or the
            expiry is not in the future.
        SignatureError: no `policy` key is on this machine.
    """
    name = policy.policy.release
    asked = (*policy.policy.asked, *policy.policy.extensions)
    if gate in always() or gate not in asked:
        open_to = [one for one in asked if one not in always()]
        raise GateError(f"the gate {gate} cannot be waived for {name}", expected=f"one of {', '.join(open_to)}")
    trust = Trust.of(ctx.workspace)
    signer = trust.signer(POLICY, owner)
    facts: dict[str, Any] = {"release": name, "gate": gate, "candidate": candidate, "policy": policy.digest}
    try:
        made = Waiver(**facts, reason=reason.strip(), expires=expires, by=signer.owner, at=now())
        past = time_of(expires) <= datetime.now(UTC)
    except (ValidationError, ValueError) as error:
        raise GateError(
            f"invalid waiver of {gate}",
            found=error,
            expected="a reason, a candidate's digest, and a time with its zone",
        ) from error
    if past:
        raise GateError(f"the waiver of {gate} has already expired", found=expires, expected="a future time")
    about = {"candidate": candidate, "policy": policy.digest}
    content = dsse.statement(WAIVER_PREDICATE, about, made.model_dump(mode="json"))
    dsse.write(_folder(ctx, name) / f"{candidate[:12]}.{gate}.json", content, signer)
    trust.remember(_counted(ctx, made)[0], _second(made))
    return made


def waivers_of(ctx: Context, policy: SignedPolicy, candidate: str, at: datetime | None = None) -> Waivers:
    """Return the valid waivers of a candidate under the current policy, and the reasons why other waivers are invalid.

    Args:
        at: time of the verdict, by default now.
    """
    trust = Trust.of(ctx.workspace)
    valid: dict[str, Waiver] = {}
    faults: list[str] = []
    for path in waiver_paths(ctx, policy.policy.release, candidate):
        try:
            found = _read(ctx, path)
        except SignatureError as error:
            faults.append(f"waiver {path.name}: {error.what}")
            continue
        why = _replaced(ctx, trust, found) or _unfit(found, policy, candidate, at or datetime.now(UTC))
        if why:
            faults.append(f"waiver of {found.gate} by {found.by}: {why}")
        else:
            valid[found.gate] = found
    return Waivers(valid, tuple(faults))


def waiver_paths(ctx: Context, release: str, candidate: str) -> tuple[Path, ...]:
    """Return the paths of a candidate's waivers, which may be valid or invalid."""
    return tuple(sorted(_folder(ctx, release).glob(f"{candidate[:12]}.*.json")))


def _read(ctx: Context, path: Path) -> Waiver:
    content = dsse.read(path, Trust.of(ctx.workspace).authority(POLICY), WAIVER_PREDICATE)
    try:
        return Waiver.model_validate(content["predicate"])
    except (KeyError, ValidationError) as error:
        raise SignatureError(f"{path} is not a waiver", found=error) from error


def _unfit(found: Waiver, policy: SignedPolicy, candidate: str, at: datetime) -> str:
    """Return the reason why a waiver is invalid, or an empty string if it is valid."""
    if (found.release, found.candidate) != (policy.policy.release, candidate):
        return "belongs to another candidate"
    if found.policy != policy.digest:
        return "belongs to another policy"
    if found.gate in always():
        return "this gate cannot be waived"
    return f"expired {found.expires}" if time_of(found.expires) <= at else ""


def _replaced(ctx: Context, trust: Trust, found: Waiver) -> str:
    """Return a message if this machine has seen a later waiver of the same gate and candidate, or an empty string if
    not."""
    if _second(found) < trust.seen(*_counted(ctx, found)):
        return "replaced by a later waiver"
    trust.remember(_counted(ctx, found)[0], _second(found))
    return ""


def _counted(ctx: Context, one: Waiver) -> tuple[str, ...]:
    return tuple(f"{place} waivers/{one.release}/{one.candidate}/{one.gate}" for place in ctx.workspace.places)


def _second(one: Waiver) -> int:
    return int(time_of(one.at).timestamp())


def _folder(ctx: Context, release: str) -> Path:
    return ctx.workspace.policies / release / "waivers"


# Evaluation of a candidate's gates: by the current signed policy, on evidence that is read each time.


class Judgement(NamedTuple):
    """Candidate with its current evidence, the current policy, and the results of its gates.

    Without a signed policy, the only result is that the gate `policy` failed. `faults` are the reasons why waivers are
    invalid.
    """

    candidate: Candidate
    evidence: Evidence
    results: tuple[GateResult, ...]
    policy: SignedPolicy | None
    faults: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return is_open(self.results)


def judge(ctx: Context, client: Any | None, recipe: Recipe, version: Any, *, whole: bool = True) -> Judgement:
    """Evaluate the gates of a candidate now, and show the results on its version in MLflow.

    Args:
        client: MLflow client, or None to show nothing in MLflow.
        whole: True to recompute also the claims about training text, as promotion requires.

    Raises:
        SignatureError, LineageError: the version cannot be tied to a candidate.
    """
    found = candidates.read(ctx, version)
    gathered = evidence.gather(ctx, recipe, found, version.tags, whole=whole)
    judged = _judged(ctx, recipe, found, gathered)
    if client is not None:
        root, measured = Trust.of(ctx.workspace).root.title, _measured(ctx, found)
        card = model_card(ctx, found) if whole else ""  # it reads the ledger
        show_gates(client, version, judged.results, root, judged.policy, measured, card)
    return judged


def write_verdict(ctx: Context, recipe: Recipe, judged: Judgement) -> None:
    """Write the candidate's signed verdict next to its directory, even if the promotion is refused."""
    if judged.policy is None:
        return
    found, release = judged.candidate, recipe.required_release().name
    read = [candidates.evidence_path(found.directory, found.key), *waiver_paths(ctx, release, found.key)]
    read += sorted((ctx.workspace.approvals / found.key[:12]).glob("*.json"))
    read += sorted(attestations.folder_of(ctx, found.checkpoint).glob("*.json"))
    signed = (signing.signature_path(found.directory), signing.slsa_path(found.directory))
    read += [path for path in signed if path.exists()]
    sign_verdict(ctx, found, judged.policy, judged.results, read, judged.faults)


def require_open(judged: Judgement) -> None:
    """Check that no gate blocks the promotion of a candidate.

    Raises:
        SignatureError, LineageError, GateError: a gate blocks; the error lists all blocking gates with reasons.
    """
    if judged.passed:
        return
    closed = blocking(judged.results)
    kinds: dict[str, type[TrustError]] = {"signature": SignatureError, "lineage": LineageError}
    raise kinds.get(closed[0].name, GateError)(
        f"{judged.candidate.model} version {judged.candidate.version} is blocked by gates",
        found="; ".join(f"{result.name}: {result.reason}" for result in closed),
        expected="no failed or pending gates",
        remedy=remedy(judged.candidate.version, judged.results),
    )


def remedy(version: str, results: Sequence[GateResult]) -> str:
    """Return the command that unblocks a candidate: approve the candidate, waive a gate, or show its gates."""
    held = blocking(results)
    failed = [one.name for one in held if one.state == "failed"]
    waivable = [name for name in failed if name not in (*always(), "policy")]
    if "policy" in failed:
        return "sign a gate policy with `plinth gates sign FILE`"
    if not failed:
        return f"approve the version with `plinth approve {version} --by PERSON --reason TEXT`" if held else ""
    if waivable != failed:
        proof = ", ".join(name for name in failed if name in always())
        return f"list every gate with its reason: `plinth approve`; {proof} cannot be waived"
    waive = f"`plinth gates waive {version} {waivable[0]} --until DATE --reason TEXT`"
    return f"fix the cause and rerun, or have the policy owner waive each gate: {waive}"


def _judged(ctx: Context, recipe: Recipe, found: Candidate, gathered: Evidence) -> Judgement:
    """Evaluate every gate of the current signed policy, which is the only source of gates."""
    try:
        signed = policy.current(ctx, recipe.required_release().name)
    except TrustError as error:
        reason = error.brief
        return Judgement(found, gathered, (GateResult(name="policy", state="failed", reason=reason),), None)
    waived = waivers_of(ctx, signed, found.key)
    return Judgement(found, gathered, evaluate(signed.policy, gathered, waived.said), signed, waived.faults)


def _measured(ctx: Context, found: Candidate) -> str:
    """Return the scores of the candidate's evaluation as text, or an empty string if there is no evaluation."""
    try:
        return scores_text(found.checkpoint, ctx.refs.load(found.evaluation).stats.get("slices") or {})
    except PlinthError:
        return ""


# Verdicts: gate results of a candidate as a signed verification summary, readable by any in-toto tool.
#
#     models/<12>.<candidate 12>.verdict.json    DSSE envelope, signed as `promoter`
#     models/<12>.<candidate 12>.refused.json    of a later refused promotion; the passing verdict stays
#
# The predicate is SLSA's Verification Summary Attestation v1 (https://slsa.dev/spec/v1.0/verification_summary): who
# verified what, when, under which policy, from which attestations. Gates with their reasons are in our extension
# field, which other readers ignore. Provenance is signed, but stated by the trainer about its own run, which is build
# level 1. Our own levels start with `PLINTH_`.

VERDICT_PREDICATE: Final = "https://slsa.dev/verification_summary/v1"
#: Predicate field with our gates; in-toto requires a URI for extensions.
GATES: Final = "urn:plinth:gates:v1"
VERIFIER: Final = "urn:plinth:registry"
SLSA_VERSION: Final = "1.0"


def verdict_predicate(
    found: Candidate,
    policy: SignedPolicy,
    results: Sequence[GateResult],
    inputs: Mapping[str, str],
    at: datetime,
    faults: Sequence[str] = (),
) -> dict[str, Any]:
    """Build the verification summary of a candidate (SLSA VSA) from its gate results.

    Args:
        inputs: SHA-256 of the signed statements that were read, by URI.
        faults: messages about invalid statements.
    """
    passed = is_open(results)
    return {
        "verifier": {"id": VERIFIER, "version": {"plinth": _plinth_version()}},
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
    """Return the verified levels of a candidate: the SLSA build level, and a level for passed gates."""
    by_name = {result.name: result.passed for result in results}
    found = ["SLSA_BUILD_LEVEL_1"] if by_name.get("signature") and by_name.get("lineage") else []
    if not is_open(results):
        return (*found, "FAILED")
    waived = any(result.state == "waived" for result in results)
    return (*found, "PLINTH_GATES_PASSED_WITH_WAIVERS" if waived else "PLINTH_GATES_PASSED")


def sign_verdict(
    ctx: Context,
    found: Candidate,
    policy: SignedPolicy,
    results: Sequence[GateResult],
    inputs: Sequence[Path],
    faults: Sequence[str] = (),
) -> Path:
    """Sign the verdict next to the candidate's directory. The newest verdict replaces the earlier verdict. However, a
    failing verdict never replaces a passing verdict, because exports of the release need the passing verdict.

    Raises:
        SignatureError: no `promoter` key is on this machine.
    """
    read = {_uri(ctx, one): hashlib.sha256(dsse.bytes_of(one)).hexdigest() for one in inputs}
    content = verdict_predicate(found, policy, results, read, datetime.now(UTC), faults)
    signer = Trust.of(ctx.workspace).signer(PROMOTER)
    target = verdict_path(found)
    refused = target.with_name(target.name.replace(".verdict.", ".refused."))
    refused.unlink(missing_ok=True)
    if content["verificationResult"] != "PASSED" and _passed(ctx, found):
        target = refused
    dsse.write(target, dsse.statement(VERDICT_PREDICATE, found.subjects, content), signer)
    return target


def read_verdict(ctx: Context, found: Candidate) -> dict[str, Any]:
    """Return the predicate of a candidate's signed verdict.

    Raises:
        SignatureError: there is no verdict, it was changed, or it belongs to another candidate.
    """
    where = verdict_path(found)
    content = dsse.read(where, Trust.of(ctx.workspace).authority(PROMOTER), VERDICT_PREDICATE)
    if dsse.subjects(content) != found.subjects:
        raise SignatureError(
            f"{where} is the verdict of another candidate", found=dsse.subjects(content), expected=found.subjects
        )
    return dict(content["predicate"])


def _passed(ctx: Context, found: Candidate) -> bool:
    try:
        return bool(read_verdict(ctx, found)["verificationResult"] == "PASSED")
    except SignatureError:
        return False


def verdict_path(found: Candidate) -> Path:
    """Return the path of a candidate's signed verdict."""
    return found.directory.with_name(f"{found.directory.name}.{found.key[:12]}.verdict.json")


def _result(one: GateResult) -> dict[str, Any]:
    return {"gate": one.name, "result": one.state, "reason": one.reason, "waiver": one.waived, "evidence": one.evidence}


def _uri(ctx: Context, file: Path) -> str:
    root = ctx.workspace.root
    return f"plinth:///{file.relative_to(root).as_posix()}" if file.is_relative_to(root) else f"plinth:///{file.name}"


def _plinth_version() -> str:
    try:
        return version("plinth")
    except PackageNotFoundError:
        return "unknown"
