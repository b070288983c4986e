"""The core alone: `python -m tests.without_ring FOLDER` makes an environment without the packages of the ring.

It is this environment with other paths: links to the core's packages, and to the tests of the core. What is installed
still lists the ring's entry points, as an image does from which somebody has deleted the folders.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
RING = tuple(sorted(path.name for path in (ROOT / "platform").glob("plinth_*") if path.name != "plinth_text"))
#: Folders of tests that need a package of the ring.
OF_THE_RING = (*RING, "benchmarks", "browser", "examples", "golden", "jobs", "mutation")


def make(folder: Path) -> Path:
    """Make the environment in a folder; returns its interpreter."""
    for path in sorted((*ROOT.glob("*"), *(ROOT / "platform").glob("*"), *(ROOT / "tests").glob("*"))):
        inside = path.relative_to(ROOT)
        if str(inside) in ("platform", "tests") or path.name in (*RING, "__pycache__"):
            continue
        if inside.parts[0] != "tests" or path.name not in OF_THE_RING:
            link = folder / "core" / inside
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
    command = [python, "-m", "pytest", "-q", "-n", "2", "tests"]
    return subprocess.run(command, cwd=folder / "core", env=environment()).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
