"""Inputs that docs/bring-your-own-corpus.md shows in addition to its example: WARCs, the next snapshot, a prefix on
S3."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "bring-your-own-corpus.md").read_text()


def section(title: str) -> str:
    """The shell blocks of a section, one after another."""
    text = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_folder_of_warcs_and_the_same_on_s3(tmp_path: Path) -> None:
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    environment.pop("PLINTH_WORKSPACE", None)

    def run(*parts: str) -> None:
        script = "set -euo pipefail\n" + "\n".join(parts)
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    def published() -> str:
        ref: dict[str, str] = json.loads((tmp_path / "mine/refs/crawl/documents.json").read_text())
        return ref["digest"]

    run(section("1. Have files in an ordinary format"), section("2. Describe it in a recipe"))
    run(section("A folder of WARCs"))
    here = published()
    stats = json.loads((tmp_path / f"mine/manifests/{here}.json").read_text())["stats"]
    excluded = {"http_status": 20, "not_html": 20}
    assert (stats["documents"], stats["files"], stats["rejects"]) == (60, 2, excluded)
    run(section("The next snapshot"))
    stats = json.loads((tmp_path / f"mine/manifests/{published()}.json").read_text())["stats"]
    rejects = {"http_status": 30, "not_html": 30, "seen_before": 15}
    assert (stats["documents"], stats["rejects"], stats["reject_rate"]) == (75, rejects, 0.0)
    run(section("A prefix on S3"))
    assert published() == here
