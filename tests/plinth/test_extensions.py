"""Members of catalogs: found, loaded when used, checked, refused by name; their source is part of their identity."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from plinth.errors import ExtensionError, RecipeError
from plinth.extensions import Catalogue, NoParams, source_digest
from plinth.records import Frozen


@dataclass(frozen=True)
class Tool:
    """Members of these tests."""

    name: str
    version: str
    run: Callable[[], int]
    params: type[Frozen] = NoParams
    note: str | None = None
    parts: tuple[str, ...] = ()
    edge: Literal["plain", "toothed"] = "plain"


class Params(Frozen):
    """Parameters of the built-in member."""

    size: int = 1


HAMMER = Tool("hammer", "1", lambda: 1, Params)

GOOD = """
from tests.plinth.test_extensions import Tool
TOOL = Tool(name="saw", version="1", run=lambda: 2)
"""


def catalogue() -> Catalogue[Tool]:
    return Catalogue("plinth.tools", "tool", Tool, {"hammer": f"{__name__}:HAMMER"}, reserved=("box",))


class Site:
    """A folder on the path, and the packages installed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, distribution: str, name: str, value: str, group: str = "plinth.tools") -> None:
        info = self.folder / f"{distribution}-2.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")

    def module(self, name: str, source: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, "tests.plinth.test_extensions", sys.modules[__name__])
    for name in ("saws", "saws.saw", "saws.teeth"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Site(folder)


def test_built_in_members_come_first_and_have_no_origin(site: Site) -> None:
    site.module("saws.py", GOOD)
    site.install("acme-saws", "saw", "saws:TOOL")
    tools = catalogue()
    assert list(tools) == ["hammer", "saw"]
    assert (len(tools), "saw" in tools, "box" in tools, tools.built_in) == (2, True, False, ("hammer",))
    assert tools["hammer"] is HAMMER
    assert tools.origin("hammer") is None
    assert tools["hammer"].version == "1"


def test_members_of_the_ring_are_built_in_and_absent_ones_name_their_package(site: Site) -> None:
    site.module("saws.py", GOOD)
    site.install("plinth", "saw", "saws:TOOL\nplane = saws:TOOL\ndrill = plinth_shed.drills:TOOL")
    site.install("acme-planes", "plane", "planes:TOOL")
    tools = catalogue()
    assert (list(tools), tools.built_in) == (["hammer", "plane", "saw"], ("hammer", "plane", "saw"))
    assert (tools["saw"].version, tools.origin("saw")) == ("1", None)
    assert "drill" not in tools
    with pytest.raises(RecipeError, match="the tool 'drill' needs the package plinth_shed, which is not installed"):
        tools.find("drill")
    with pytest.raises(ExtensionError, match="'plane' exists 2 times"):
        tools["plane"]


def test_nothing_is_imported_before_it_is_used(site: Site) -> None:
    site.module("saws.py", GOOD)
    site.install("acme-saws", "saw", "saws:TOOL")
    tools = catalogue()
    assert "saw" in tools
    assert "saws" not in sys.modules
    assert tools["saw"].run() == 2
    assert "saws" in sys.modules


def test_version_and_source_are_part_of_the_members_version(site: Site) -> None:
    site.module("saws.py", GOOD)
    site.install("acme-saws", "saw", "saws:TOOL")
    tools = catalogue()
    origin = tools.origin("saw")
    assert origin is not None
    assert (origin.distribution, origin.version, origin.sha256) == ("acme-saws", "2.0", source_digest("saws"))
    assert tools["saw"].version == f"1 (acme-saws 2.0 sha256:{origin.sha256})"


@pytest.mark.parametrize(
    ("source", "value", "what", "found"),
    [
        ("import nothing_of_this_name", "saws:TOOL", "cannot be imported", "ModuleNotFoundError"),
        ("1 / 0", "saws:TOOL", "cannot be imported", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "saws:TOOL", "cannot be imported", "SystemExit: 3"),
        ("def (", "saws:TOOL", "cannot be imported", "SyntaxError"),
        (GOOD, "saws:TOLL", "cannot be imported", "AttributeError"),
        (GOOD, "saws:Tool", "has the wrong interface", "is a type"),
        ("TOOL = 7", "saws:TOOL", "has the wrong interface", "7 is a int"),
        (
            GOOD.replace('"saw"', '"axe"'),
            "saws:TOOL",
            "has the wrong interface",
            "its name is 'axe', but its entry point is 'saw'",
        ),
        (GOOD.replace('"1"', "1"), "saws:TOOL", "has the wrong interface", "version is 1"),
        (GOOD.replace("lambda: 2", "2"), "saws:TOOL", "has the wrong interface", "run is 2"),
        (
            GOOD.replace("lambda: 2", "len, params=dict"),
            "saws:TOOL",
            "has the wrong interface",
            "params is <class 'dict'>",
        ),
        (GOOD.replace("lambda: 2", "len, parts=['a']"), "saws:TOOL", "has the wrong interface", "parts is ['a']"),
        (GOOD.replace("lambda: 2", "len, edge='toothed', note=3"), "saws:TOOL", "has the wrong interface", "note is 3"),
        (GOOD.replace("lambda: 2", "len, edge='blunt'"), "saws:TOOL", "has the wrong interface", "edge is 'blunt'"),
        (GOOD.replace("lambda: 2", "len, note=3"), "saws:TOOL", "has the wrong interface", "note is 3"),
    ],
)
def test_a_member_that_cannot_be_used_is_named(site: Site, source: str, value: str, what: str, found: str) -> None:
    site.module("saws.py", source)
    site.install("acme-saws", "saw", value)
    with pytest.raises(ExtensionError) as refused:
        catalogue().find("saw")
    assert f"the tool 'saw' of acme-saws 2.0 {what}" in str(refused.value)
    assert found in str(refused.value.found)
    assert "fix or uninstall acme-saws" in str(refused.value.remedy)
    assert catalogue().find("hammer") is HAMMER  # no other extension is affected


@pytest.mark.parametrize("name", ["hammer", "box"])
def test_a_name_that_is_taken_is_refused(site: Site, name: str) -> None:
    site.module("saws.py", GOOD)
    site.install("acme-saws", name, "saws:TOOL")
    with pytest.raises(ExtensionError, match=f"the tool '{name}' exists 2 times") as refused:
        catalogue().find(name)
    assert "plinth" in str(refused.value.found)
    assert "acme-saws 2.0 (saws:TOOL)" in str(refused.value.found)


def test_two_packages_of_one_name_are_refused(site: Site) -> None:
    site.module("saws.py", GOOD)
    site.install("acme-saws", "saw", "saws:TOOL")
    site.install("best-saws", "saw", "saws:TOOL")
    with pytest.raises(ExtensionError, match="the tool 'saw' exists 2 times") as refused:
        catalogue().find("saw")
    assert all(name in str(refused.value.found) for name in ("acme-saws 2.0", "best-saws 2.0"))


def test_other_groups_are_not_looked_at(site: Site) -> None:
    site.install("acme-saws", "saw", "saws:TOOL", group="plinth.toolboxes")
    assert list(catalogue()) == ["hammer"]


def test_names_and_parameters_that_do_not_exist_are_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="no tool 'hamer'") as refused:
        catalogue().find("hamer")
    assert refused.value.remedy == "did you mean 'hammer'?"
    with pytest.raises(RecipeError, match="tool hammer has no parameter 'sise'"):
        catalogue().parameters("hammer", {"sise": 2}, "tools.hammer")
    with pytest.raises(RecipeError, match=r"tools\.hammer\.size: "):
        catalogue().parameters("hammer", {"size": "large"}, "tools.hammer")
    assert catalogue().parameters("hammer", {"size": 2}, "tools.hammer") == Params(size=2)


# ---- the digest of the source -------------------------------------------------------------------------


def package(site: Site) -> None:
    site.module("saws/__init__.py", "")
    site.module("saws/saw.py", "import json\nfrom .teeth import count\n\ndef f():\n    from saws import oil\n")
    site.module("saws/teeth.py", "count = 8\n")
    site.module("saws/oil/__init__.py", "")
    site.module("saws/other.py", "import torch\n")


@pytest.mark.parametrize("changed", ["saws/__init__.py", "saws/saw.py", "saws/teeth.py", "saws/oil/__init__.py"])
def test_what_the_module_imports_from_its_package_counts(site: Site, changed: str) -> None:
    package(site)
    before = source_digest("saws.saw")
    site.module(changed, (site.folder / changed).read_text() + "\n# a change\n")
    assert source_digest("saws.saw") != before


def test_what_it_does_not_import_does_not_count_and_nothing_is_executed(site: Site) -> None:
    package(site)
    before = source_digest("saws.saw")
    site.module("saws/other.py", "changed = True\n")
    site.module("saws/new.py", "1 / 0\n")
    assert source_digest("saws.saw") == before
    assert not any(name.startswith("saws") for name in sys.modules)


def test_another_module_of_the_same_distribution_counts_where_it_is_known(site: Site) -> None:
    site.module("saws.py", "import blades\n")
    site.module("blades.py", "length = 1\n")
    alone, whole = source_digest("saws"), source_digest("saws", frozenset({"blades"}))
    site.module("blades.py", "length = 2\n")
    assert source_digest("saws") == alone
    assert source_digest("saws", frozenset({"blades"})) != whole


def test_a_module_without_a_file_has_no_digest() -> None:
    with pytest.raises(FileNotFoundError, match="no file of the module nothing_of_this_name"):
        source_digest("nothing_of_this_name.saw")


def test_catalogues_of_this_repository_hold_what_they_promise() -> None:
    from plinth.corpus.annotate.base import ANNOTATORS
    from plinth.corpus.sources.record import READERS
    from plinth.launch.base import LAUNCHERS

    found: Any
    for known in (ANNOTATORS, READERS, LAUNCHERS):
        for name in known.built_in:
            found = known[name]
            assert found.name == name
            assert found.description.endswith(".")
            assert known.origin(name) is None
