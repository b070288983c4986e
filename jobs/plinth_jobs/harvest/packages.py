"""Installed distributions: name, version, declared licence, description, files."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from email.message import Message
from functools import cache, cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import cast

from plinth_jobs.harvest.spdx import from_metadata

#: Left out: this project itself, which changes with every edit.
SKIPPED = {"plinth"}


@dataclass(frozen=True)
class Package:
    """One distribution. `name` is normalised as in PEP 503."""

    name: str
    version: str
    licence: str
    distribution: Distribution

    @cached_property
    def description(self) -> str:
        """The long description, Markdown or reStructuredText."""
        message = headers(self.distribution)
        return str(message.get_payload() or message.get("Description") or "").strip()

    @property
    def mime(self) -> str:
        """Media type of the description."""
        declared = str(headers(self.distribution).get("Description-Content-Type") or "text/x-rst")
        return declared.partition(";")[0].strip().lower()

    def sources(self) -> dict[str, Path]:
        """Installed Python files by relative path."""
        files = self.distribution.files or []
        return {
            str(file): Path(str(file.locate())) for file in files if file.suffix == ".py" and ".." not in file.parts
        }


@cache
def headers(distribution: Distribution) -> Message:
    """A distribution's metadata as the e-mail message that it is."""
    return cast(Message, distribution.metadata)


def site_folders() -> list[Path]:
    """Folders of installed distributions, without repeats."""
    paths = sysconfig.get_paths()
    return [Path(path) for path in dict.fromkeys((paths["purelib"], paths["platlib"]))]


def packages() -> list[Package]:
    """Every distribution once, by name."""
    found: dict[str, Package] = {}
    for distribution in distributions(path=[str(folder) for folder in site_folders()]):
        metadata = headers(distribution)
        name = (metadata.get("Name") or "").lower().replace("_", "-").replace(".", "-")
        if not name or name in SKIPPED:
            continue
        licence = from_metadata(
            metadata.get("License-Expression"), metadata.get("License"), metadata.get_all("Classifier") or []
        )
        found.setdefault(name, Package(name, distribution.version, licence, distribution))
    return [found[name] for name in sorted(found)]
