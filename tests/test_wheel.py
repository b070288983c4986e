"""The wheel next to a project that has modules called `assets`, `jobs` and `registry`, and without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import tiny_corpus

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow

#: Modules of a user's Dagster project.
PROJECT = {
    "assets.py": "import dagster as dg\n\n\n@dg.asset\ndef crawl() -> int:\n    return 1\n",
    "jobs/__init__.py": "import dagster as dg\n\nnightly = dg.define_asset_job('nightly')\n",
    "registry.py": "OWN = True\n",
    "definitions.py": """
import sys
from pathlib import Path
import dagster as dg
import assets, jobs, registry
from plinth_jobs import definitions, recipes

plinth = definitions.build(recipes.load(recipes.find("tiny")), Path(sys.argv[1]))
defs = dg.Definitions.merge(dg.Definitions(assets=[assets.crawl], jobs=[jobs.nightly]), plinth)
keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
assert registry.OWN and {"crawl", "candidate", "web/documents"} <= keys, keys
print(sys.modules["plinth"].__file__, definitions.__file__)
""",
}
#: Starts a command as a machine without torch does: the import fails, and so does the search for it.
BASE_INSTALLATION = """
import sys
sys.modules.update(dict.fromkeys(("torch", "deepspeed", "lm_eval")))
from plinth_jobs.cli import call
commands = " ".join(sys.argv[1:]).split(" & ")
sys.exit(max(call(command.split()) for command in commands))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like site-packages in which only the wheel is."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    made = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, and the folder in which its commands are run."""
    for name, text in PROJECT.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def run(site: Path, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the project, with the wheel before this checkout."""
    paths = os.pathsep.join((str(project), str(site)))
    env = {**os.environ, "PYTHONPATH": paths, "PLINTH_WORKSPACE": str(project / "workspace")}
    return subprocess.run([sys.executable, *words], cwd=project, env=env, capture_output=True, text=True, timeout=600)


def test_the_wheel_takes_nine_names(site: Path) -> None:
    names = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    ring = {"plinth_ops", "plinth_lab", "plinth_audit", "plinth_extras"}
    assert names == {"plinth_text", "plinth", "plinth_registry", "plinth_assets", "plinth_jobs"} | ring


def test_a_project_with_the_same_names_loads_both(site: Path, project: Path, tmp_path: Path) -> None:
    ran = run(site, project, "definitions.py", str(tmp_path / "workspace"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(str(site)) == 2, ran.stdout  # the wheel's, not this checkout's


def test_recipes_and_policies_are_found_by_name(site: Path, project: Path) -> None:
    (project / "own.yaml").write_text("extends: tiny\nname: own\n")
    ran = run(site, project, "-c", BASE_INSTALLATION, "recipe check own.yaml & recipe check demo & gates check default")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(str(site)) == 2, ran.stdout  # demo and default


def test_an_installed_plinth_makes_assets_without_torch(site: Path, project: Path) -> None:
    tiny_corpus.write(project / "workspace" / "input")
    ran = run(site, project, "-c", BASE_INSTALLATION, "run", "-r", "tiny", "--select", "web/documents")
    assert ran.returncode == 0, ran.stderr
    assert (project / "workspace" / "refs" / "web" / "documents.json").exists()


def test_without_torch_a_run_that_trains_is_refused_at_once_and_names_the_extra(site: Path, project: Path) -> None:
    tiny_corpus.write(project / "workspace" / "input")
    ran = run(site, project, "-c", BASE_INSTALLATION, "keys init --demo & run -r tiny")
    assert (ran.returncode, "torch is not installed" in ran.stderr) == (3, True), ran.stderr
    assert "pip install 'plinth[train]'" in ran.stderr
    assert not (project / "workspace" / "refs").exists() or not list((project / "workspace" / "refs").rglob("*.json"))


def test_without_torch_a_command_that_needs_it_names_the_extra(site: Path, project: Path) -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom plinth_jobs import cli as root\n"
    code += "root.cli.invoke = lambda ctx: __import__('plinth.training.engine.engine')\nsys.exit(root.call(['status']))"
    ran = run(site, project, "-c", code)
    assert (ran.returncode, "pip install 'plinth[train]'" in ran.stderr) == (3, True), ran.stderr
