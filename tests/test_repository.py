"""Structure of the repository: imports run one way, the control plane is light, no machine is written down."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONTROL = ("plinth_registry", "plinth_assets", "plinth_jobs")
RING = ("plinth_ops", "plinth_lab", "plinth_audit", "plinth_extras")
PACKAGES = {name: ROOT / "platform" / name for name in ("plinth_text", "plinth", *RING)}
PACKAGES |= {name: ROOT / name[len("plinth_") :] / name for name in CONTROL}
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".sh", ".html", ".sql", ".j2", ".cfg", ""}


@cache
def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class Parsed(NamedTuple):
    """What the tests need of a module's syntax tree: all trees together would take 500 MB."""

    docstring: str
    imports: set[str]
    classes: list[str]  # public ones


@cache
def parsed() -> dict[str, Parsed]:
    """Every module, parsed."""
    known, found = set(modules()), dict[str, Parsed]()
    for name, path in modules().items():
        tree = ast.parse(path.read_text())
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
        imported = set(imports(tree, name, path.name == "__init__.py", known)) - {name}
        found[name] = Parsed(ast.get_docstring(tree) or "", imported, classes)
    return found


def docstring(name: str) -> str:
    """The docstring of a module."""
    return parsed()[name].docstring


def python(code: str) -> str:
    """Return the output of code in a fresh interpreter, run in the repository's root as users do."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- imports --------------------------------------------------------------------------------------


@pytest.mark.exhaustive  # `make test` begins with it, in `make check`
def test_layers_contract_holds() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout
    assert "2 kept, 0 broken" in done.stdout


def imports(tree: ast.Module, name: str, is_package: bool, known: set[str]) -> Iterator[str]:
    """Our own modules that a module imports when it is loaded (not in functions, not for types only)."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join([*up, *filter(None, [node.module])])
            for alias in node.names:
                target = f"{base}.{alias.name}"
                yield from [target] if target in known else [base] if base in known else []
        waiting += ast.iter_child_nodes(node)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import circle, or nothing."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_circle() -> None:
    graph = {name: one.imports for name, one in parsed().items()}
    assert sum(map(len, graph.values())) > len(graph), "the walk over imports saw almost nothing"
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("a", "circular"),
    [
        ("from pkg import b", True),
        ("from .b import x", True),
        ("import pkg.b", True),
        ("def f():\n    import pkg.b", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pkg.b", False),
        ("try:\n    import pkg.b\nexcept ImportError:\n    pass", True),
    ],
)
def test_circles_would_be_seen(a: str, circular: bool) -> None:
    known = {"pkg", "pkg.a", "pkg.b"}
    sources = {"pkg": "", "pkg.a": a, "pkg.b": "from pkg.a import y"}
    graph = {name: set(imports(ast.parse(text), name, name == "pkg", known)) for name, text in sources.items()}
    assert bool(circle(graph)) is circular


# ---- the control plane ------------------------------------------------------------------------------


#: What a code location does not import when it loads the definitions of a recipe.
LATE = {"torch", "deepspeed", "mlflow", "great_expectations", "dvc_data", "ray", "matplotlib", "boto3"}
LATE |= {"scipy.special", "scipy.optimize", "scipy.stats"}


def test_control_plane_imports_neither_torch_nor_deepspeed(tmp_path: Path) -> None:
    names = {name for name in modules() if name.split(".")[0] in CONTROL and not name.endswith("__main__")}
    names = sorted(names - {"plinth_registry.mlflow.artifacts"})  # MLflow loads it, by its entry point
    assert "plinth_jobs.definitions" in names
    recipe = PACKAGES["plinth_jobs"] / "recipes" / "tiny.yaml"
    code = (
        "import importlib, sys\nfrom pathlib import Path\n"
        "from plinth_jobs.definitions import build\nfrom plinth.recipe.load import load\n"
        f"build(load(Path({str(recipe)!r})), Path({str(tmp_path)!r}))\n"
        f"print([m for m in {sorted(LATE)!r} if m in sys.modules])\n"
        f"for name in {names!r}:\n    importlib.import_module(name)\n"
        "print([m for m in ('torch', 'deepspeed', 'mlflow', 'ray', 'great_expectations') if m in sys.modules])"
    )
    assert python(code).splitlines()[-2:] == ["[]", "[]"]


def test_help_imports_almost_nothing() -> None:
    code = (
        "import sys\nfrom plinth_jobs.cli import call\n"
        "for noun in ([], ['corpus'], ['model'], ['release'], ['ops'], ['experiment']):\n"
        "    assert call([*noun, '--help']) == 0\n"
        "heavy = ('pydantic', 'dagster', 'pyarrow', 'numpy', 'yaml', 'rich', 'fsspec', 'mlflow', 'torch')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    shown = python(code)
    assert "Usage: plinth" in shown
    assert shown.splitlines()[-1] == "[]"


#: Packages that take longer to import than most commands take to run. `scipy` stands for statistics.
HEAVY = {"dagster", "mlflow", "torch", "ray", "great_expectations", "pandas", "sqlalchemy", "fastapi"}
STAGES = {"plinth_assets", "scipy", "pyarrow", "fsspec", "matplotlib"}
#: Commands with what they must not import, down to the connection to MLflow. Each set contains the next.
LIGHT = {
    "plinth_registry.mlflow.connection plinth_registry.mlflow.server": HEAVY | STAGES | {"requests"},  # people
    "plinth_jobs.recipes plinth.recipe.load": HEAVY | STAGES,
    "plinth_registry.decisions": HEAVY | STAGES,  # approve, reject
    "plinth_registry.verified plinth.provenance.lineage plinth_jobs.targets": HEAVY | STAGES,  # verify
    "plinth_registry.policy plinth_registry.judgement": HEAVY | STAGES,  # gates
    "plinth_registry.decisions plinth_registry.mlflow.connection": HEAVY
    | STAGES,  # promote, rollback, canary --return, mirror
    "plinth_registry.freeze": HEAVY | STAGES,  # taint
    "plinth_registry.releases plinth_registry.consumers plinth_registry.incidents": HEAVY
    | STAGES,  # log, consumer, incident
    "plinth.corpus.funnel plinth_jobs.cli.corpus": HEAVY,
    "plinth_jobs.cli.provenance plinth.provenance.explain": HEAVY,
    "plinth_jobs.asset_states": {"dagster", "mlflow", "torch", "great_expectations", "sqlalchemy", "fastapi"},  # status
}


@cache
def loaded() -> dict[str, set[str]]:
    """The packages that each row of LIGHT loads first, in one process: none that a row before it may load is forbidden
    to it."""
    assert all(more >= less for more, less in pairwise(LIGHT.values()))
    code = (
        f"import importlib, json, sys\nloaded = {{}}\nfor names in {[*LIGHT]!r}:\n    before = set(sys.modules)\n"
        "    for name in names.split(): importlib.import_module(name)\n"
        "    loaded[names] = [name for name in sys.modules if name not in before]\nprint(json.dumps(loaded))"
    )
    return {names: {name for name in found if "." not in name} for names, found in json.loads(python(code)).items()}


@pytest.mark.parametrize("names", LIGHT)
def test_a_command_imports_nothing_that_it_does_not_need(names: str) -> None:
    assert loaded()[names] & LIGHT[names] == set()


def test_collection_imports_no_peer() -> None:
    """Each test process collects all modules; peers of a few of them cost half of its CPU time and 300 MB."""
    peers = {"deepspeed", "duckdb", "evalconfidence", "gguf", "kubernetes", "mlflow", "model_signing", "opacus"}
    peers |= {"scipy", "securesystemslib", "sklearn", "spacy", "transformers"}
    files = set((ROOT / "tests").rglob("*.py")) - set((ROOT / "tests/benchmarks").rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}: {name}: use tests.peers.Peer"
        for path in sorted(files)
        for name in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        if name in peers
    ]
    assert found == []


def test_platform_is_the_standard_librarys() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    shown = python("import platform, plinth\nprint(platform.__file__)\nprint(platform.python_version())").splitlines()
    assert not Path(shown[0]).is_relative_to(ROOT / "platform")
    assert shown[1] == ".".join(map(str, sys.version_info[:3]))


# ---- the tree -----------------------------------------------------------------------------------------


def tracked() -> list[Path]:
    """Text files of the repository, as git knows them."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    return [
        ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file() and Path(name).suffix in TEXT
    ]


def test_no_absolute_path_of_a_machine_in_the_tree() -> None:
    machine = re.compile(r"(?<![\w.:/])/(?:work|root|home|Users)/[\w.]")
    files = tracked()
    assert len(files) > 50
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        if path != Path(__file__).resolve() and path.name != "LICENSE"
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if machine.search(line)
    ]
    assert found == []


def test_no_two_classes_of_one_name() -> None:
    by_name: dict[str, list[str]] = {}
    for module, one in parsed().items():
        for name in one.classes:
            by_name.setdefault(name, []).append(module)
    assert len(by_name) > 300
    assert {name: found for name, found in by_name.items() if len(found) > 1} == {}


def test_every_module_says_what_it_is() -> None:
    assert [name for name in modules() if len(docstring(name).strip(". ")) < 10] == []


def test_every_package_docstring_names_what_is_in_it() -> None:
    """The docstring of a package is its map; a package on none of the maps would not be found."""
    found = modules()
    lacking = []
    for name in found:
        package, _, stem = name.rpartition(".")
        if package in found and stem != "__main__" and not re.search(rf"(?<![\w.]){stem}(?!\w)", docstring(package)):
            lacking.append(name)
    assert len(found) > 500
    assert lacking == []


def test_the_logic_of_every_stage_is_where_the_map_of_stages_says() -> None:
    rows = re.findall(r"^    ((?:\w+, )*\w+) {3,}(plinth/[\w/]+|registry)", docstring("plinth_assets"), re.MULTILINE)
    stages = {stem: place for stems, place in rows for stem in stems.split(", ")}
    assert set(stages) == {path.stem for path in PACKAGES["plinth_assets"].glob("*.py")} - {"__init__", "catalog"}
    for stem, place in stages.items():
        folder = ROOT / ("registry" if place == "registry" else f"platform/{place.replace('STEM', stem)}")
        assert folder.with_suffix(".py").exists() or list(folder.rglob("*.py")), stem


def test_one_module_locks_files() -> None:
    """The only exception: kernels are compiled below the storage, and a failing lock does no harm there."""
    found = [name for name, path in modules().items() if re.search(r"\b(flock|lockf)\(", path.read_text())]
    assert found == ["plinth_text.compiled.build", "plinth.storage.atomic"]


def test_nothing_is_left_to_do() -> None:
    unfinished = re.compile(r"\b(?:TODO|FIXME|XXX)\b|raise NotImplementedError")
    found = [name for name, path in modules().items() if unfinished.search(path.read_text())]
    assert found == []


def test_every_place_that_contributors_are_sent_to_exists() -> None:
    table = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| ")]
    places = [place for line in table for place in re.findall(r"`([\w/]+/[\w/.]*)`", line)]
    library = ROOT / "platform" / "plinth"
    others = [ROOT / name for name in ("registry", "assets", "jobs")]
    roots = (ROOT, library.parent, library, library / "corpus", *others)
    assert len(places) > 15
    assert [place for place in places if not any((root / place).exists() for root in roots)] == []


# ---- what users run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("setup", "uv pip install"),
        ("demo", "plinth run -r demo"),
        ("up", "plinth up"),
        ("test", 'reorder -m "not exhaustive and not gpu"'),
        ("test-all", 'reorder -m "not gpu"'),
        ("test-fast", "pytest -n 3"),
        ("test", "lint-imports"),
        ("docs", "plinth.recipe.reference docs/recipe.md"),
        ("docs", "sphinx -E -W --keep-going"),
        ("bench", "bench_*.py"),
        ("screenshots", "docs/screenshots.py"),
    ],
)
def test_make_targets_do_what_they_say(target: str, command: str) -> None:
    done = subprocess.run(["make", "-nB", target], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    assert command in done.stdout


def test_ci_runs_what_users_run() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "${BASH_SOURCE[0]}")/.."', "exec make test"]


def test_everything_installed_is_pinned() -> None:
    """A package without a pin would come in another version to the next clone."""
    from importlib.metadata import distributions

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    names = [plain(line.split("==")[0]) for line in pins]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!]+", line) for line in pins)
    assert names == sorted(set(names))
    installed = {plain(found.metadata["Name"]) for found in distributions()}
    assert installed - set(names) - {"plinth", "pip"} == set()
