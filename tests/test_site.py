"""The site of the documentation: it builds without a warning, reaches every page, and stays short."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Written from the code: docs/recipe.md, and what is not committed.
GENERATED = {DOCS / "recipe.md"}
MOST_WORDS = 35_000


def pages() -> list[Path]:
    """The pages that people write."""
    listed = subprocess.run(["git", "ls-files", "docs/*.md"], capture_output=True, text=True, cwd=ROOT, check=True)
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line) not in GENERATED]


def test_the_pages_stay_short() -> None:
    """Without runbooks, playbooks and menus, which are in folders of their own."""
    words = sum(len(path.read_text().split()) for path in pages() if path.parent == DOCS)
    assert 10_000 < words <= MOST_WORDS


def test_every_page_begins_with_its_one_title() -> None:
    fenced = re.compile(r"\A---\n.*?^---\n+|^```.*?^```", re.MULTILINE | re.DOTALL)  # a skill begins with its metadata
    found = {path.name: fenced.sub("", path.read_text()) for path in pages()}
    assert {
        name for name, text in found.items() if re.findall(r"^# ", text, re.M) != ["# "] or text[:2] != "# "
    } == set()


def test_the_index_for_language_models_has_every_page_of_the_menus_with_a_sentence() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        import llms_txt
        import reference_pages
    finally:
        sys.path.remove(str(DOCS))
    reference_pages.write(DOCS / "reference")  # as the site does; a fresh clone has none
    text = llms_txt.text(reference_pages.OUTSIDE)
    assert text.startswith("# Plinth\n\n> Plinth turns raw text into")
    links = re.findall(r"^- \[[^\]]+\]\((\S+)\.html\): (.{15,})$", text, re.MULTILINE)
    assert len(links) == text.count("\n- ") > 60
    assert [sentence for _, sentence in links if "](" in sentence or "```" in sentence] == []
    unlisted = {"index", *(f"roles/{path.stem}" for path in (DOCS / "roles").iterdir())}
    unlisted |= {path.relative_to(DOCS).with_suffix("").as_posix() for path in (DOCS / "runbooks").iterdir()}
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in [*pages(), *GENERATED]}
    assert names - unlisted - {page for page, _ in links} == set()


def test_the_skill_has_the_metadata_that_agents_read() -> None:
    metadata = yaml.safe_load((DOCS / "agents" / "SKILL.md").read_text().split("---\n")[1])
    assert metadata["name"] == "plinth"
    assert [word for word in ("filter", "loss spike", "takedown") if word not in metadata["description"]] == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_finds_every_page(tmp_path: Path) -> None:
    """Broken links and anchors, pages in no menu and commands without a reference are warnings, and fail."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    index = json.loads((tmp_path / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in [*pages(), *GENERATED]}
    assert names - set(index["docnames"]) == set()
    assert {f"reference/{name}" for name in ("commands/run", "gates", "alerts", "metrics")} <= set(index["docnames"])
    linked = re.findall(r"\]\((\S+\.html)\)", (tmp_path / "llms.txt").read_text())
    assert [page for page in linked if not (tmp_path / page).is_file()] == []
    outside = re.findall(r'(?:src|href)="(https?:)?//[^"]+\.(?:js|css|woff2?)"', (tmp_path / "index.html").read_text())
    assert outside == []
