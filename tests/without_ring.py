"""The core alone: `python -m tests.without_ring FOLDER` makes an environment without the packages of the ring.

It is this environment with other paths: links to the core's packages, and to the tests that need no more. What is
installed still lists the ring's entry points, as an image does after its folders were deleted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
RING = tuple(sorted(path.name for path in (ROOT / "platform").glob("plinth_*") if path.name != "plinth_text"))
#: Folders of tests that need a package of the ring.
OF_THE_RING = (*RING, "benchmarks", "browser", "examples", "golden", "jobs", "mutation")
#: Tests of the whole repository, or of how tests are run.
OF_THE_WHOLE = ("test_repository.py", "test_isolation.py", "test_forks.py", "test_infra.py", "test_setup.py",
                "test_site.py", "test_without_ring.py")  # fmt: skip
#: Tests that read the demo's recipe or the reference of all recipes, which name the ring, or all installed packages.
WITH_THE_RING = (
    "tests/plinth/training/parameters/test_parallel.py::test_the_recipe_names_file_line_and_key",
    "tests/plinth/training/parameters/test_parallel.py::test_shorter_rows_divide_over_sequence_ranks_too",
    "tests/plinth/recipe/test_reference.py::test_the_page_is_current",
    "tests/plinth/recipe/test_retired.py::test_what_is_written_loads_as_the_same_recipe[demo-True]",
    "tests/plinth/recipe/test_retired.py::test_what_is_written_loads_as_the_same_recipe[demo-False]",
    "tests/plinth_text/fasttext/test_predict.py::test_probabilities_on_real_texts_are_fasttexts",
)


def core_tests() -> list[Path]:
    """Files of the tests that need no package of the ring, by themselves or by what they import of other tests."""
    left_out = (*OF_THE_RING, *OF_THE_WHOLE, "__pycache__")
    folders = [path for path in (ROOT / "tests").glob("*") if path.name not in left_out]
    files = [one for path in folders for one in (path.rglob("*") if path.is_dir() else [path]) if one.is_file()]
    text = {one: one.read_text() for one in files if one.suffix == ".py"}
    names = {one: ".".join(one.relative_to(ROOT).with_suffix("").parts) for one in text}
    lacking, before = set(RING) | {f"tests.{name}" for name in OF_THE_RING}, 0
    while len(lacking) > before:
        before = len(lacking)
        helpers = {name.rpartition(".")[2] for name in lacking if name.count(".") > 1}  # imported from their own folder
        every = "|".join(map(re.escape, sorted(lacking | helpers)))
        inside = "|".join(name.removeprefix("tests.") for name in sorted(lacking) if name.count(".") == 1)
        imported = re.compile(rf"^ *(?:(?:from|import) (?:{every})|from tests import .*\b(?:{inside}))\b", re.MULTILINE)
        lacking |= {names[one] for one, lines in text.items() if imported.search(lines)}
    kept = [one for one in files if names.get(one) not in lacking and "__pycache__" not in one.parts]
    return [*kept, *(ROOT / "tests" / "benchmarks" / "results").glob("*.json")]  # which tests of the core read


def make(folder: Path) -> Path:
    """Make the environment in a folder; returns its interpreter."""
    folder = folder.resolve()  # processes of the tests have other working directories
    top = (*ROOT.glob("*"), *(ROOT / "platform").glob("*"))
    left_out = ("platform", "tests", "__pycache__", ".venv", *RING)
    for path in (*(one for one in top if one.name not in left_out), *core_tests()):
        link = folder / "core" / path.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    sources = [folder / "core" / name for name in ("platform", "registry", "assets", "jobs", ".")]
    site = sysconfig.get_path("purelib", vars={"base": str(folder / "venv")})
    installed = [path for path in sys.path if Path(path).name == "site-packages"]
    Path(site, "core.pth").write_text("\n".join(map(str, (*sources, *installed))))
    return python


def environment() -> dict[str, str]:
    """The variables of a process of the environment: no path of this checkout among them."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def main(folder: Path) -> int:
    """Run the core's tests alone; returns pytest's exit code."""
    python = make(folder)
    left_out = [word for name in WITH_THE_RING for word in ("--deselect", name)]
    command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", *left_out, "tests"]
    return subprocess.run(command, cwd=folder / "core", env=environment()).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
