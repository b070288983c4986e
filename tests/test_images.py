"""Images install what their locks name; the locks follow the project, and the bills of materials follow the locks.

Built by a workflow or by hand (see docs/installation.md); here they are read.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
IMAGES, WORKFLOWS = ROOT / "infra" / "images", ROOT / ".github" / "workflows"
KINDS = ("control", "worker", "trainer")
#: Packages of torch's wheel for GPUs; a test machine has the one for CPUs.
CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")
_LINE = re.compile(r"([a-z0-9][a-z0-9.-]*)==(\S+) --hash=sha256:[0-9a-f]{64}")


def locked(kind: str) -> dict[str, str]:
    """Versions by name; any line that pip would install without a hash fails."""
    lines = [line for line in (IMAGES / f"{kind}.lock").read_text().splitlines() if not line.startswith("#")]
    found = [_LINE.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None]
    return {match[1]: match[2] for match in found if match}


@pytest.fixture(scope="module")
def script() -> Any:
    specification = importlib.util.spec_from_file_location("lock", IMAGES / "lock.py")
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_has_what_the_project_asks_and_what_that_needs(kind: str, script: Any) -> None:
    have, missing = locked(kind), []
    todo = [Requirement(each) for each in script.wanted(kind)]
    seen = set()
    while todo:
        asked = todo.pop()
        name = canonicalize_name(asked.name)
        if str(asked) in seen or CUDA.fullmatch(name):
            continue
        seen.add(str(asked))
        if name not in have or not asked.specifier.contains(have[name], prereleases=True):
            missing.append(f"{asked}: {have.get(name)}")
            continue
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": each}) for each in (asked.extras or {""})):
                todo.append(needed)
    assert missing == []
    assert len(seen) > 200


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_keeps_to_the_pins(kind: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(one.name): one for one in (Requirement(x) for x in lines if x and x[0] not in "#-")}
    have = locked(kind)
    assert [f"{name}=={have[name]}" for name in have.keys() & pins if have[name] not in pins[name].specifier] == []
    assert len(have.keys() & pins) > 200
    assert ("torch" in have, "deepspeed" in have) == (kind == "trainer", kind == "trainer")


@pytest.mark.parametrize("kind", KINDS)
def test_a_bill_of_materials_is_its_lock_and_valid(kind: str) -> None:
    validation, schema = (pytest.importorskip(f"cyclonedx.{name}") for name in ("validation.json", "schema"))
    text, lines = (IMAGES / f"{kind}.cdx.json").read_text(), (IMAGES / f"{kind}.lock").read_text().splitlines()
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
    components = json.loads(text)["components"]
    stated = {f"{one['name']}=={one['version']} --hash=sha256:{one['hashes'][0]['content']}" for one in components}
    assert stated == {line for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("name", ["Containerfile", "proxy.Containerfile"])
def test_an_image_has_a_base_that_somebody_named_and_no_root(name: str) -> None:
    lines = [line for line in (IMAGES / name).read_text().splitlines() if not line.startswith("#")]
    assert "ARG BASE" in lines  # without a default
    assert {line.split()[1] for line in lines if line.startswith("FROM ")} - {"${COMPILER}"} == {"${BASE}"}
    assert [line for line in lines if line.startswith("ARG COMPILER")] in ([], ["ARG COMPILER=${BASE}"])
    last = [line for line in lines if line.startswith(("USER", "ENTRYPOINT"))]
    assert last[0] == "USER 10001:10001"
    assert last[1].startswith("ENTRYPOINT")
    assert not [line for line in lines if line.startswith("ADD") or "curl" in line or "wget" in line]


def test_what_an_image_copies_is_not_kept_from_the_builder() -> None:
    allowed = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    for name in ("Containerfile", "proxy.Containerfile"):
        for line in re.findall(r"^COPY (?!--from)(.+)$", (IMAGES / name).read_text(), re.MULTILINE):
            for source in line.split()[:-1]:
                assert source in allowed or str(Path(source).parent) in allowed, source
                assert all((ROOT / source.replace("${KIND}", kind)).exists() for kind in KINDS), source


def test_workflows_build_every_image_and_test_every_supported_python() -> None:
    images, tests = (yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())["jobs"] for name in ("images", "tests"))
    makefile, project = (ROOT / "Makefile").read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    kinds = [one["kind"] for one in images["image"]["strategy"]["matrix"]["include"]]
    assert kinds == [*KINDS, "proxy"]
    assert f"{'|'.join(kinds)})" in makefile
    known = SpecifierSet(project["requires-python"])
    assert tests["tests"]["strategy"]["matrix"]["python"] == [f"3.{at}" for at in range(30) if f"3.{at}.0" in known]
    steps = [step.get("run", "") for step in (*images["image"]["steps"], *tests["tests"]["steps"])]
    targets = re.findall(r"^make ([a-z-]+)", "\n".join(steps), re.MULTILINE)
    assert len(targets) == 4
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
