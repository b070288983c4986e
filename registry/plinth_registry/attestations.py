"""Attestations: findings about a checkpoint, signed by the responsible role.

    attestations/<checkpoint 16>/<asset>.json     an in-toto statement in a DSSE envelope; `/` in an asset name becomes
                                                  `.`

A measurement is attested by the process that computed it, before publication, so a substituted manifest has no
attestation. Gates read only attested findings about the candidate's checkpoint. Invalid attestations are reported and
ignored. An attestation that replaces an earlier attestation names it and has the next number. A machine that has seen
the newer attestation therefore rejects the earlier one if it is restored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import PlinthError, SignatureError
from plinth.evaluation.measurement import JudgedCheckpoint, Measurement, measurement_of
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen, Manifest
from plinth.training.attempts import code_version
from plinth.trust import dsse
from plinth.trust.dsse import COMPLIANCE, EVALUATOR, TRAINER, now
from plinth.trust.root import Trust

#: Signing role of each kind of attestation. The evaluator signs measurements; facts about a run and its data have their
#: own kinds.
KINDS: Final[Mapping[str, str]] = {
    "measurement": EVALUATOR,
    "contamination": EVALUATOR,
    "resume": EVALUATOR,
    "licences": COMPLIANCE,
    "personal_data": COMPLIANCE,
    "stability": TRAINER,
    "cost": TRAINER,
}


class Attestation(Frozen):
    """Attestation about a checkpoint. `materials` has the digest of each input of the finding, by name."""

    kind: str
    asset: str
    checkpoint: str
    recipe: str
    code: str
    materials: Mapping[str, str]
    facts: Mapping[str, Any]
    at: str
    number: int = Field(1, ge=1, description="Sequence number of the attestation for this checkpoint and asset.")
    replaces: str = Field("", description="SHA-256 of the canonical envelope that this attestation replaces.")

    @property
    def manifest(self) -> str | None:
        """Digest of the measured asset's manifest, or None for facts without a manifest."""
        return self.materials.get(self.asset)

    def same_as(self, other: Attestation) -> bool:
        """Return True if two attestations have the same content. The times of the attestations are not compared."""
        order = {"at": other.at, "number": other.number, "replaces": other.replaces}
        return self.model_copy(update=order) == other


class Attested(NamedTuple):
    """Valid attestations about a checkpoint, by asset, and a message about each invalid attestation."""

    valid: dict[str, Attestation]
    faults: tuple[str, ...]


def predicate_type(kind: str) -> str:
    """Return the in-toto predicate type of a kind of attestation."""
    return f"urn:plinth:attestation:{kind}:v1"


def attest(
    ctx: Context,
    recipe: Recipe | str,
    kind: str,
    asset: str,
    checkpoint: str,
    *,
    materials: Mapping[str, str],
    facts: Mapping[str, Any] | None = None,
) -> Attestation:
    """Sign an attestation, unless an attestation with the same content exists.

    Args:
        recipe: recipe, or the fingerprint of a recipe.

    Raises:
        SignatureError: this machine has no key of the signing role.
    """
    made = Attestation(
        kind=kind,
        asset=asset,
        checkpoint=checkpoint,
        recipe=recipe if isinstance(recipe, str) else fingerprint.digest(recipe),
        code=code_version()["sha256"],
        materials=dict(materials),
        facts=dict(facts or {}),
        at=now(),
    )
    trust, path = Trust.of(ctx.workspace), path_of(ctx, checkpoint, asset)
    known = _known(trust, path, checkpoint)
    if known is not None and known.same_as(made):
        return known
    number = max(known.number if known else 0, trust.seen(*_order(path))) + 1
    replaced = fingerprint.digest(dsse.envelope_of(path)) if known else ""
    made = made.model_copy(update={"number": number, "replaces": replaced})
    subjects = {"checkpoint": checkpoint} | ({asset: made.manifest} if made.manifest else {})
    statement = dsse.statement(predicate_type(kind), subjects, made.model_dump(mode="json"))
    dsse.write(path, statement, trust.signer(KINDS[kind]))
    _remember(trust, path, made)
    return made


def _known(trust: Trust, path: Path, checkpoint: str) -> Attestation | None:
    """Return the current attestation about an asset, or None if it does not exist or does not verify."""
    try:
        return _read_attestations(trust, path, checkpoint)
    except SignatureError:
        return None


def _order(path: Path) -> tuple[str, ...]:
    """Return the two names under which this machine tracks attestation numbers: for the path with links resolved, and
    for the path as given."""
    workspace = path.parents[2]
    real = Path(os.path.realpath(workspace), path.relative_to(workspace))
    return tuple(dict.fromkeys((f"attestations {real}", f"attestations {path}")))


def _remember(trust: Trust, path: Path, found: Attestation) -> None:
    """Store the number of an attestation on this machine if it replaces another attestation."""
    if found.number > 1:
        trust.remember(_order(path)[0], found.number)


def kind_of(asset: str) -> str:
    """Return the kind of attestation that a measured asset must have. Attestations of another kind are ignored.

    Raises:
        ExtensionError: the asset's measurement cannot be loaded.
    """
    one = measurement_of(asset)
    return one.statement if one else "measurement"


def attest_measurement(ctx: Context, recipe: Recipe, checkpoint: str, made: Manifest) -> Attestation:
    """Sign an attestation of a manifest that measures a checkpoint."""
    materials = {made.asset: made.digest, **made.inputs}
    return attest(ctx, recipe, kind_of(made.asset), made.asset, checkpoint, materials=materials)


def is_attested(ctx: Context, checkpoint: str, made: Manifest) -> bool:
    """Return True if the responsible role attested this manifest and the attestation verifies."""
    try:
        found = _read_attestations(Trust.of(ctx.workspace), path_of(ctx, checkpoint, made.asset), checkpoint)
    except SignatureError:
        return False
    return (found.kind, found.manifest) == (kind_of(made.asset), made.digest)


def about(ctx: Context, checkpoint: str) -> Attested:
    """Return all attestations about a checkpoint, valid and invalid.

    Raises:
        SignatureError: no root of trust is pinned.
    """
    trust, valid, faults = Trust.of(ctx.workspace), {}, []
    for path in sorted(folder_of(ctx, checkpoint).glob("*.json")):
        try:
            found = _read_attestations(trust, path, checkpoint)
        except SignatureError as error:
            faults.append(f"{path.name}: {error.what}")
        else:
            valid[found.asset] = found
    return Attested(valid, tuple(faults))


def path_of(ctx: Context, checkpoint: str, asset: str) -> Path:
    """Return the path of the attestation about an asset of a checkpoint."""
    return folder_of(ctx, checkpoint) / f"{asset.replace('/', '.')}.json"


def folder_of(ctx: Context, checkpoint: str) -> Path:
    """Return the folder with the attestations about a checkpoint."""
    return ctx.workspace.attestations / checkpoint[:16]


def _read_attestations(trust: Trust, path: Path, checkpoint: str) -> Attestation:
    envelope = dsse.envelope_of(path)
    kind = str(dsse.unverified(envelope, str(path)).get("predicate", {}).get("kind"))
    if kind not in KINDS:
        raise SignatureError(f"{path} states an unknown kind of evidence", found=kind, expected=", ".join(KINDS))
    content = dsse.opened(envelope, trust.authority(KINDS[kind]), predicate_type(kind), str(path))
    try:
        found = Attestation.model_validate(content["predicate"])
    except ValidationError as error:
        raise SignatureError(f"{path} is not an attestation", found=error) from error
    expected = {"checkpoint": found.checkpoint} | ({found.asset: found.manifest} if found.manifest else {})
    name = path.name == f"{found.asset.replace('/', '.')}.json"
    if found.checkpoint != checkpoint or dsse.subjects(content) != expected or not name:
        raise SignatureError(
            f"{path} is about another subject",
            found=f"{found.asset} of checkpoint {found.checkpoint[:12]}",
            expected=f"checkpoint {checkpoint[:12]}",
            remedy="run the evaluation of this checkpoint again",
        )
    newest = trust.seen(*_order(path))
    if found.number < newest:
        raise SignatureError(
            f"{path} is outdated: this machine has seen a newer statement",
            found=f"statement {found.number}",
            expected=f"statement {newest}",
            remedy="restore the newer statement, or repeat the evaluation of this checkpoint",
        )
    _remember(trust, path, found)
    return found


# Measurements of a checkpoint as facts for gates, read from the statistics in attested manifests.


def measurements_of(ctx: Context, checkpoint: str, attested: Mapping[str, Attestation]) -> dict[str, Manifest]:
    """Return a checkpoint's measurements, which are manifests that the responsible role signed, by asset."""
    found = {}
    for asset, one in attested.items():
        if one.manifest is None:
            continue
        with suppress(PlinthError):  # an unreadable manifest or unknown measurement is not evidence
            made = ctx.refs.load(one.manifest)
            if one.kind == kind_of(asset) and made.asset == asset and checkpoint in made.inputs.values():
                found[asset] = made
    return found


def by_measurement(found: Mapping[str, Manifest]) -> dict[str, tuple[Measurement, dict[str, Manifest]]]:
    """Return a checkpoint's manifests, grouped by measurement. A measurement that cannot be loaded is left out."""
    sorted_out: dict[str, tuple[Measurement, dict[str, Manifest]]] = {}
    for asset, made in sorted(found.items()):
        with suppress(PlinthError):
            if one := measurement_of(asset):
                sorted_out.setdefault(one.name, (one, {}))[1][asset] = made
    return sorted_out


def measured_facts(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> dict[str, Frozen]:
    """Return the facts that gates read, by name of the measurement."""
    read = {name: _facts_of(one, made, judged) for name, (one, made) in by_measurement(found).items()}
    return {name: one for name, one in read.items() if one is not None}


def _facts_of(one: Measurement, made: Mapping[str, Manifest], judged: JudgedCheckpoint) -> Frozen | None:
    try:
        return one.read(made, judged) if one.read else None
    except Exception:  # statistics may hold anything, and so may the code of another package
        return None
