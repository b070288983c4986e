"""What was measured of a checkpoint, as facts for gates: from the statistics of manifests.

A manifest counts when the role that answers for it has signed it and the checkpoint is among its inputs. Numbers that
cannot be read make no fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.evaluation.measurement import JudgedCheckpoint, Measurement, measurement_of
from plinth.records import Frozen, Manifest
from plinth_registry import attestations
from plinth_registry.attestations import Attestation


def of(ctx: Context, checkpoint: str, attested: Mapping[str, Attestation]) -> dict[str, Manifest]:
    """Measurements of a checkpoint by asset: manifests that the role which answers for them has signed."""
    found = {}
    for asset, one in attested.items():
        if one.manifest is None:
            continue
        with suppress(PlinthError):  # a manifest that cannot be read, or its measurement not used, is no evidence
            made = ctx.refs.load(one.manifest)
            if one.kind == attestations.kind_of(asset) and made.asset == asset and checkpoint in made.inputs.values():
                found[asset] = made
    return found


def by_measurement(found: Mapping[str, Manifest]) -> dict[str, tuple[Measurement, dict[str, Manifest]]]:
    """Manifests of a checkpoint by measurement; a measurement that cannot be used is no evidence."""
    sorted_out: dict[str, tuple[Measurement, dict[str, Manifest]]] = {}
    for asset, made in sorted(found.items()):
        with suppress(PlinthError):
            if one := measurement_of(asset):
                sorted_out.setdefault(one.name, (one, {}))[1][asset] = made
    return sorted_out


def facts(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> dict[str, Frozen]:
    """Facts of every measurement that gates read, by its name."""
    read = {name: _read(one, made, judged) for name, (one, made) in by_measurement(found).items()}
    return {name: one for name, one in read.items() if one is not None}


def _read(one: Measurement, made: Mapping[str, Manifest], judged: JudgedCheckpoint) -> Frozen | None:
    try:
        return one.read(made, judged) if one.read else None
    except Exception:  # statistics may hold anything, and so may the code of another package
        return None
