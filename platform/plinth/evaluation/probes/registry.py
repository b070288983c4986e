"""Probes made by code: the six built-in ones, and those of installed packages."""

from __future__ import annotations

from collections.abc import Sequence

from plinth.evaluation.probes.base import Probe
from plinth.evaluation.probes.parameters import FAMILIES
from plinth.extensions import Catalogue

#: Version of all built-in items; raised with any change of one.
VERSION = "1"

#: Each built-in family's own probe, and those of installed packages (entry points of the group `plinth.probes`).
PROBES = Catalogue(
    "plinth.probes",
    "probe",
    Probe,
    {family: f"plinth.evaluation.probes.builtin.{family}:PROBE" for family in FAMILIES},
)


def versions(names: Sequence[str]) -> dict[str, str]:
    """Version, package and digest of the source of each that is not built in; those of this package are `VERSION`."""
    return {name: PROBES.find(name).version for name in names if name not in PROBES.built_in}
