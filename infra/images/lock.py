"""Write the locks of the images and their bills of materials: `make locks`, when pins have changed.

    KIND.lock        every package of an image, with the SHA-256 of the one file that is installed (pip checks it)
    KIND.cdx.json    the same as CycloneDX 1.6, for vulnerability scanners

uv chooses the versions, under `constraints.txt`, for Python 3.11 on Linux x86_64; nothing is installed. Run it there.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
#: Builds Plinth's own wheel, and packages that are published as source only.
BUILD = ("hatchling", "editables", "setuptools", "wheel", "packaging", "ninja")
#: In a lock, before those.
SOURCES = "# built from source, with what is above"
EXTRAS = {
    "control": ("s3", "postgres", "kubernetes", "hsm", "page"),
    "worker": ("s3", "ray", "ner", "pdf", "latex"),
    "trainer": ("train", "s3", "ray", "transformers", "tasks", "gpu", "quantised", "dp", "tensorboard", "wandb"),
}
UV = ("uv", "pip", "compile", "--quiet", "--no-config", "--constraint", str(ROOT / "constraints.txt"), "--format")
TARGET = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28", "-")


def wanted(kind: str) -> list[str]:
    """Return direct requirements of an image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *BUILD]
    for extra in EXTRAS[kind]:
        asked += project["optional-dependencies"][extra]
    return asked


def resolved(asked: list[str]) -> list[dict[str, Any]]:
    """Name, version and file of every package that these need, in order of name."""
    command = [sys.executable, "-m", *UV, "pylock.toml", *TARGET]
    done = subprocess.run(command, input="\n".join(asked), check=True, stdout=subprocess.PIPE, text=True)
    ranks = {str(tag): rank for rank, tag in enumerate(sys_tags())}
    return [_chosen(each, ranks) for each in tomllib.loads(done.stdout)["packages"] if not _elsewhere(each)]


def _elsewhere(package: dict[str, Any]) -> bool:
    """Return True if the marker selects another platform or Python."""
    return "marker" in package and not Marker(package["marker"]).evaluate()


def _chosen(package: dict[str, Any], ranks: dict[str, int]) -> dict[str, Any]:
    """Return the best wheel for this platform, or the source."""
    fitting = []
    for wheel in package.get("wheels", ()):
        tags = parse_wheel_filename(wheel["url"].rpartition("/")[2].replace("%2B", "+"))[3]
        if rank := [ranks[str(tag)] for tag in tags if str(tag) in ranks]:
            fitting.append((min(rank), wheel))
    file = min(fitting, key=lambda each: each[0])[1] if fitting else package["sdist"]
    sha256 = file["hashes"]["sha256"]
    return {"name": package["name"], "version": package["version"], "sha256": sha256, "source": not fitting}


def lock(kind: str, packages: list[dict[str, Any]]) -> str:
    """Return requirements for `pip install --require-hashes --no-deps`: wheels first, then source builds."""

    def lines(source: bool) -> list[str]:
        chosen = (each for each in packages if each["source"] is source)
        return [f"{each['name']}=={each['version']} --hash=sha256:{each['sha256']}" for each in chosen]

    head = f"# Packages of the image `{kind}`; `make locks` writes this file."
    return "\n".join([head, *lines(False), SOURCES, *lines(True)]) + "\n"


def bom(kind: str, packages: list[dict[str, Any]]) -> str:
    """CycloneDX 1.6, without time or serial number: the same lock gives the same bytes."""
    components = [
        {
            "type": "library",
            "bom-ref": purl,
            "name": each["name"],
            "version": each["version"],
            "purl": purl,
            "hashes": [{"alg": "SHA-256", "content": each["sha256"]}],
        }
        for each in packages
        if (purl := f"pkg:pypi/{each['name']}@{each['version']}")
    ]
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": f"plinth-{kind}"}},
        "components": components,
    }
    return json.dumps(content, separators=(",", ":")).replace('{"type":"library"', '\n{"type":"library"') + "\n"


if __name__ == "__main__":
    if (sys.version_info[:2], sys.platform, platform.machine()) != ((3, 11), "linux", "x86_64"):
        sys.exit("a lock is of Python 3.11 on Linux x86_64: run `make locks` there")
    for name in EXTRAS:
        found = resolved(wanted(name))
        Path(__file__).with_name(f"{name}.lock").write_text(lock(name, found))
        Path(__file__).with_name(f"{name}.cdx.json").write_text(bom(name, found))
        print(f"{name}: {len(found)} packages, {sum(each['source'] for each in found)} of them from source")
