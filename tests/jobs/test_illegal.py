"""The gate through the pipeline: a planted text is nowhere in the workspace, and every report has the counts."""

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from plinth.storage import off_limits
from tests import tiny_corpus
from tests.jobs.conftest import answer, plinth, variant

pytestmark = pytest.mark.slow

CANARY = "quetzalgroth"
CHANGE = """\
corpus:
  lists: {illegal: LISTS}
  illegal: {lists: illegal}
  annotate:
    illegal: {}
"""


def holders(root, word):
    """Files that hold a word: as they are, Parquet column by column, gzip inflated."""
    found = []
    for path in root.rglob("*"):
        if not path.is_file():
            continue
        data = path.read_bytes()
        seen = [data, str(path).encode()]
        if data[:4] == b"PAR1":
            table = pq.read_table(path)
            seen += [repr(table.column(name).to_pylist()).encode() for name in table.column_names]
        if data[:2] == b"\x1f\x8b":
            seen.append(gzip.decompress(data))
        found += [path] if any(word.encode() in one for one in seen) else []
    return found


@pytest.mark.exhaustive
def test_a_planted_text_is_nowhere_in_the_workspace(tmp_path, monkeypatch):
    monkeypatch.setenv(off_limits.VARIABLE, str(tmp_path))
    workspace, lists, outside = tmp_path / "workspace", tmp_path / "lists", tmp_path / "prose.jsonl"
    tiny_corpus.write(workspace / "input")
    lists.mkdir()
    (lists / "keywords.txt").write_text("flobrik zanmox\ttrade\n")
    prose = workspace / "input" / "tiny" / "prose.jsonl"
    planted = {"text": f"{CANARY} offers Flobrik Zanmox to all.", "url": f"https://prose.example/{CANARY}"}
    outside.write_text(prose.read_text() + (json.dumps(planted) + "\n") * 2)
    prose.unlink()
    prose.symlink_to(outside)  # the source itself belongs to the user and is outside
    recipe = variant(tmp_path, CHANGE.replace("LISTS", str(lists)))
    ran = plinth(workspace, "run", "-r", recipe, "--select", "prose/illegal")
    assert CANARY not in ran.stdout + ran.stderr
    assert CANARY not in plinth(workspace, "corpus", "quarantine").stdout
    hits = answer(workspace, "quarantine")
    assert [(row["list"], row["kind"], row["category"], row["uri"]) for row in hits] == [
        ("keywords.txt", "keyword", "trade", None)
    ] * 2
    prose.unlink()
    assert holders(workspace, CANARY) == []
    assert holders(workspace, "flobrik zanmox")  # the list is there, so the search does find


@pytest.mark.exhaustive
def test_what_came_in_before_a_list_grew_is_found_and_can_be_removed(tmp_path, monkeypatch):
    monkeypatch.setenv(off_limits.VARIABLE, str(tmp_path))
    workspace, lists = tmp_path / "workspace", tmp_path / "lists"
    tiny_corpus.write(workspace / "input")
    lists.mkdir()
    (lists / "keywords.txt").write_text("vexnuk zanmox\ttrade\n")
    outside, prose = tmp_path / "prose.jsonl", workspace / "input" / "tiny" / "prose.jsonl"
    outside.write_text(prose.read_text() + json.dumps({"text": f"{CANARY} is offered here."}) + "\n")
    prose.unlink()
    prose.symlink_to(outside)
    recipe = variant(tmp_path, CHANGE.replace("LISTS", str(lists)))
    plinth(workspace, "run", "-r", recipe, "--select", "prose/illegal")
    assert answer(workspace, "quarantine", "find") == []
    (lists / "keywords.txt").write_text(f"vexnuk zanmox\ttrade\n{CANARY}\ttrade\n")
    plinth(workspace, "run", "-r", recipe, "--select", "prose/illegal")
    (found,) = answer(workspace, "quarantine", "find")
    assert (found["published"], found["older"], found["documents"]) == ([], ["prose/documents"], 1)
    Path(found["path"]).unlink()
    assert answer(workspace, "quarantine", "find") == []
    prose.unlink()
    listed = [path for path in holders(workspace, CANARY) if path.read_bytes()[:4] == b"PAR1"]
    assert listed == []
