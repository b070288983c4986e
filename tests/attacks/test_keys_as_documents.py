"""Attack: a recipe, or links in a workspace, that would store keys as documents."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth import private
from plinth.compute.context import Context
from plinth.compute.engine import InlineEngine
from plinth.corpus import lists
from plinth.corpus.documents import documents
from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket, Documents, Source, Terms
from plinth.errors import SourceError
from plinth.evaluation.comparison.models import weights
from plinth.records import Manifest
from plinth.storage import listing, off_limits
from plinth.storage.files import opened
from plinth.storage.parts import read_table
from plinth.storage.workspace import CACHE_VARIABLE, Workspace

SECRET = "PRIVATE KEY"


@pytest.fixture
def site(own_trust: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, folders of Plinth's own, a corpus and a workspace, side by side."""
    for variable, name in (("HOME", "home"), (private.VARIABLE, "private"), (CACHE_VARIABLE, "cache")):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / name))
    for name in ("home/.ssh/id_ed25519", "private/verified/a.sqlite", "cache/b-1/store/a"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"{SECRET} in {name}")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/a.txt").write_text("A text of the corpus.")
    Workspace(tmp_path / "workspace").ensure()
    assert SECRET in a_key(own_trust).read_text()
    return tmp_path


def a_key(trust: Path) -> Path:
    return next((trust / "keys/promoter").glob("*.key"))


def run(site: Path, path: str) -> tuple[Manifest, list[dict[str, Any]]]:
    """The documents of a source that asks for hidden files, too, and everything that was stored of it."""
    ctx = Context(Workspace(site / "workspace"), engine=InlineEngine())
    terms = Terms(train=True, redistribute=True, commercial=True)
    facts = {"kind": "text", "licence": "MIT", "domain": "example.org", "snapshot": "2026-46"}
    bucket = Bucket(description="", owner="o", sources=(Source(path=path, terms=terms, hidden=True, **facts),))
    made = documents.run(ctx, "b", bucket, Documents(max_reject_rate=1), inventory(bucket, ctx.workspace.input))
    return made, [row for part in made.parts for row in read_table(ctx.store, part).to_pylist()]


def link(site: Path, target: Path) -> str:
    (site / "link").symlink_to(target)
    return str(site / "link")


def link_in_input(site: Path, target: Path) -> str:
    (site / "workspace/input/docs").symlink_to(target)
    return "docs"


def hard_link(site: Path, target: Path) -> str:
    os.link(a_key(target), site / "workspace/input/innocent.txt")
    return "innocent.txt"


WAYS: dict[str, Callable[[Path, Path], str]] = {
    "its path": lambda site, trust: str(trust),
    "one key": lambda site, trust: str(a_key(trust)),
    "file://": lambda site, trust: f"file://{trust}",
    "local://": lambda site, trust: f"local://{trust}",
    "a relative path": lambda site, trust: f"../../{trust.name}",
    "dots": lambda site, trust: f"{site}/corpus/../{trust.name}/keys",
    "a glob": lambda site, trust: f"{trust}/keys/*/*.key",
    "a glob of its own folder": lambda site, trust: f"{site}/own-tru*/keys",
    "a link": link,
    "a link in input": link_in_input,
    "a hard link": hard_link,
    "a home": lambda site, trust: "~/.ssh",
    "a private folder": lambda site, trust: str(site / "private/verified"),
    "a cache": lambda site, trust: str(site / "cache"),
    "the environment": lambda site, trust: "/proc/self/environ",
    "another process": lambda site, trust: f"/proc/self/root{trust}",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_source_that_leads_to_keys(site: Path, own_trust: Path, way: str) -> None:
    path = WAYS[way](site, own_trust)
    with pytest.raises(SourceError, match=r"is off limits|is not read|outside the model folder"):
        run(site, path)
    with pytest.raises(SourceError, match=r"is off limits|is not read|outside the model folder"):
        listing.listing(path, site / "workspace/input")


def test_a_folder_above_the_keys(site: Path, own_trust: Path) -> None:
    """All that may be read is; the rest is counted with its reason."""
    os.link(a_key(own_trust), site / "corpus/hard.txt")
    (site / "corpus/soft.txt").symlink_to(a_key(own_trust))
    os.link(site / "corpus/a.txt", site / "corpus/same.txt")  # an ordinary file under two names
    hidden = [one for top in (own_trust, site / "home", site / "private", site / "cache") for one in top.rglob("*")]
    made, rows = run(site, str(site))
    assert not [row for row in rows if SECRET in str(row)]
    assert {"corpus/a.txt", "corpus/same.txt"} <= {row["uri"] for row in rows if "text" in row}
    reasons = {row["uri"]: row["reason"] for row in rows if "reason" in row}
    assert (reasons["corpus/hard.txt"], reasons["corpus/soft.txt"]) == ("private_file", "symlink")
    assert made.stats["rejects"]["private_file"] == sum(one.is_file() for one in hidden) + 1
    assert made.stats["reject_rate"] == 0  # no damage


def test_keys_that_are_kept_elsewhere(site: Path, own_trust: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one.pem", "two.pem"):
        (site / name).write_text(SECRET)
    a_key(own_trust).with_suffix(".source").write_text(f"file:{site / 'one.pem'}\n")
    monkeypatch.setenv("PLINTH_KEY_TRAINER", f"file:{site / 'two.pem'}")
    for name in ("one.pem", "two.pem"):
        os.link(site / name, site / f"corpus/{name}")
        for path in (name, f"corpus/{name}"):
            with pytest.raises(SourceError, match=r"is off limits|is not read|outside the model folder"):
                listing.inventory(str(site / path), site / "workspace/input")


def test_a_hard_link_that_takes_a_place_after_the_inventory(site: Path, own_trust: Path) -> None:
    (file,) = listing.inventory(str(site / "corpus"), site)
    (site / "corpus/a.txt").unlink()
    os.link(a_key(own_trust), site / "corpus/a.txt")
    with pytest.raises(SourceError, match=r"is off limits|is not read|outside the model folder"), opened(file):
        pass


def test_a_link_out_of_input_leads_nowhere(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who can write the workspace may have created the link; the user must name its target or allow the link."""
    base = site / "workspace/input"
    (base / "docs").symlink_to(site / "corpus")
    (base / "own").mkdir()
    (base / "own/b.txt").write_text("b")
    (base / "near").symlink_to("own")
    assert [one.name for one in listing.inventory("near", base)] == ["b.txt"]
    for path in ("docs", "docs/a.txt", "docs/*.txt", str(base / "docs")):
        with pytest.raises(SourceError, match="outside the folders allowed for sources"):
            listing.inventory(path, base)
    (file,) = listing.inventory("own", base)
    (base / "own").rename(base / "moved")
    (base / "own").symlink_to(base / "moved")
    with pytest.raises(SourceError, match="cannot open"), opened(file):
        pass
    assert [one.name for one in listing.inventory(str(site / "corpus"), base)] == ["a.txt"]
    monkeypatch.setenv(off_limits.VARIABLE, os.pathsep.join([str(site / "other"), str(site / "corpus")]))
    assert [one.name for one in listing.inventory("docs", base)] == ["a.txt"]
    base.rename(site / "moved-input")
    base.symlink_to(site / "moved-input")
    with pytest.raises(SourceError, match="outside the folders allowed for sources"):
        listing.inventory("moved", base)


def test_sources_outside_the_folders_that_the_operator_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = site / "workspace/input"
    (base / "b.txt").write_text("b")
    monkeypatch.setenv(off_limits.VARIABLE, str(site / "other"))
    for path in (str(site / "corpus"), "../../corpus", f"file://{site}/corpus", "/etc/hostname"):
        with pytest.raises(SourceError, match="outside the folders allowed for sources"):
            listing.inventory(path, base)
    assert [one.name for one in listing.inventory("b.txt", base)] == ["b.txt"]
    monkeypatch.setenv(off_limits.VARIABLE, str(site))
    assert [one.name for one in listing.inventory("../../corpus", base)] == ["a.txt"]
    with pytest.raises(SourceError, match=r"is off limits|is not read|outside the model folder"):
        listing.inventory("~/.ssh", base)


@pytest.mark.parametrize("scheme", ["git", "sftp", "ssh", "simplecache", "filecache", "zip", "dir", "generic"])
def test_schemes_that_read_this_machine_in_other_ways(site: Path, scheme: str) -> None:
    with pytest.raises(SourceError, match=f"found:.*{scheme}://"):
        listing.inventory(f"{scheme}://{site}/corpus", site)


def test_a_list_and_a_folder_of_weights_that_lead_to_keys(site: Path, own_trust: Path) -> None:
    ctx = Context(Workspace(site / "workspace"))
    with pytest.raises(SourceError, match=r"is off limits|is not read|outside the model folder"):
        lists.run(ctx, "domains", str(own_trust))
    os.link(a_key(own_trust), site / "corpus/hard.txt")
    with pytest.raises(SourceError, match=r"off limits|is not read"):  # a list is read whole or not at all
        lists.run(ctx, "domains", str(site / "corpus"))
    for put in (os.link, os.symlink):
        folder = site / f"model-{put.__name__}"
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text("{}")
        put(a_key(own_trust), folder / "tokenizer.json")
        with pytest.raises(SourceError, match=r"is off limits|is not read|outside the model folder"):
            weights(ctx, folder)
    assert not any(SECRET.encode() in path.read_bytes() for path in ctx.workspace.store.rglob("*") if path.is_file())


def test_weights_in_a_download_cache_are_links(site: Path) -> None:
    ctx, repository = Context(Workspace(site / "workspace")), site / "hub/models--org--name"
    folder = repository / "snapshots/abc"
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (repository / "blobs" / name).write_text("{}")
        (folder / name).symlink_to(f"../../blobs/{name}")
    assert len(weights(ctx, folder).parts) == 3
