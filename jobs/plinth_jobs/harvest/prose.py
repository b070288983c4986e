"""Long descriptions of installed packages as gzipped JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable

from plinth_jobs.harvest.output import Output, gzipped, shares, take
from plinth_jobs.harvest.packages import Package
from plinth_jobs.harvest.summary import Caps

MIN_CHARACTERS = 200
FILES = 4


def write_prose(output: Output, caps: Caps, packages: Iterable[Package]) -> None:
    """One line per package: id, name, version, licence, mime, text."""
    described = {package.name: package for package in packages if len(package.description) >= MIN_CHARACTERS}
    sizes = {name: len(package.description.encode("utf-8", "replace")) for name, package in described.items()}
    for index, names in shares(take(sizes, caps.prose), FILES):
        lines = []
        for name in names:
            package = described[name]
            row = {
                "id": name,
                "licence": package.licence,
                "mime": package.mime,
                "name": name,
                "text": package.description,
                "version": package.version,
            }
            lines.append(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            output.count(package.licence, sizes[name])
        output.write(f"descriptions-{index:05d}.jsonl.gz", gzipped(b"".join(lines)))
