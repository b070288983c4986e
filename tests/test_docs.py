"""Commands of the documentation do what it describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plinth.storage.workspace import TRUST_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "bring-your-own-corpus.md"
LAST = "plinth status"  # the last command of the five steps


def blocks(page: str) -> list[str]:
    """The shell blocks of a page, in order."""
    return re.findall(r"^```bash\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_bring_your_own_corpus(tmp_path: Path) -> None:
    commands = []
    for block in blocks(PAGE.read_text()):
        commands.append(block)
        if LAST in block:
            break
    assert len(commands) == 6
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    no_root = str(tmp_path / "trust")
    environment = {**os.environ, "PATH": path, TRUST_VARIABLE: no_root}
    environment.pop("PLINTH_WORKSPACE", None)
    down = "trap 'plinth down -w mine || :' EXIT"  # MLflow, which a training run starts, outlives it
    script = "\n".join(["set -euo pipefail", down, *commands])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "mine/recipe.yaml is valid." in done.stdout
    assert "broken_record" in done.stdout  # the line that was cut off
    assert "https://articles.example/3: " in done.stdout
    assert re.search(r"parameters\s+[\d,]+", done.stdout)
    assert "evaluation is verified down to its raw sources." in done.stdout


def test_the_page_has_blocks_up_to_its_last_step() -> None:
    assert LAST in "".join(blocks(PAGE.read_text()))
