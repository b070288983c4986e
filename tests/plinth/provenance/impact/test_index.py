"""The index of links: exact, growing, rebuilt when it is damaged, and never trusted if another user wrote it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.provenance import lineage
from plinth.provenance.impact import downstream
from plinth.provenance.lineage import Edges, SavedLinks
from plinth.storage.workspace import TRUST_VARIABLE

SOURCE = "5" * 64


def found(line: Any, origin: str = SOURCE) -> list[str]:
    return [each.digest for each in downstream(Context(line.ctx.workspace), [origin])]


def read(line: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifests that a search reads."""
    seen: list[str] = []
    real = lineage._read
    monkeypatch.setattr(lineage, "_read", lambda ctx, digests: real(ctx, seen.extend(digests) or digests))
    found(line)
    return seen


def hide(known: Edges, digest: str) -> Edges:
    """Return the index without the descendants of a manifest."""
    node = known.nodes.tolist().index(digest.encode())
    keep = known.inputs != node
    return replace(known, inputs=known.inputs[keep], consumers=known.consumers[keep])


def test_only_what_is_new_is_read(line: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found(line)
    inputs = {"checkpoint": line.made["checkpoint"].digest}
    made = line.publish("evaluation", (), inputs, version="2")
    assert read(line, monkeypatch) == [made.digest]
    assert set(found(line)) == {*before, made.digest}
    assert read(line, monkeypatch) == []


def test_an_index_that_hides_a_descendant_is_not_believed(line: Any) -> None:
    before = found(line)
    path = line.ctx.workspace.root / lineage.FILE
    forged = hide(lineage.decoded(path.read_bytes()), line.made["run"].digest)
    path.write_bytes(lineage.encoded(forged))
    assert found(line) == before
    assert lineage.decoded(path.read_bytes()).inputs.size > forged.inputs.size


def test_with_the_note_of_its_user_the_forged_index_would_hide_it(line: Any) -> None:
    """Show that the note is needed: without it, the test above could not fail."""
    before = found(line)
    path = line.ctx.workspace.root / lineage.FILE
    data = lineage.encoded(hide(lineage.decoded(path.read_bytes()), line.made["run"].digest))
    path.write_bytes(data)
    lineage.note_path(line.ctx.workspace).write_text(hashlib.sha256(data).hexdigest())
    assert len(found(line)) < len(before)


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"", lambda data: data[:-1] + b"x"])
def test_a_damaged_index_is_made_again(line: Any, damage: Any) -> None:
    before = found(line)
    path = line.ctx.workspace.root / lineage.FILE
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert found(line) == before
    assert path.read_bytes() == whole


def test_another_user_reads_the_manifests(line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found(line)
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "another"))
    assert len(read(line, monkeypatch)) == len(line.made)
    assert found(line) == before


def test_where_nothing_can_be_kept_the_search_works(line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "file"))
    assert set(found(line)) == {made.digest for made in line.made.values()}


def test_what_is_deleted_stays_known(line: Any) -> None:
    before = found(line)
    gone = line.made["run"].digest
    (line.ctx.workspace.manifests / f"{gone}.json").unlink()
    states = {each.digest: each.state for each in downstream(Context(line.ctx.workspace), [SOURCE])}
    assert list(states) == before
    assert states[gone] == "published"
    line.ctx.workspace.refs.joinpath("run.json").unlink()
    states = {each.digest: each.state for each in downstream(Context(line.ctx.workspace), [SOURCE])}
    assert states[gone] == "deleted"


def test_a_changed_manifest_cannot_enter_the_index(line: Any) -> None:
    path = line.ctx.workspace.manifests / f"{line.made['run'].digest}.json"
    path.write_bytes(path.read_bytes().replace(line.made["mixture"].digest.encode(), b"0" * 64))
    with pytest.raises(IntegrityError, match="has changed"):
        found(line)


def test_note_and_folder_are_private(line: Any) -> None:
    found(line)
    note = lineage.note_path(line.ctx.workspace)
    assert (note.stat().st_mode & 0o777, note.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@given(st.data())
def test_grown_in_parts_or_at_once_and_searched_agrees_with_a_walk(data: st.DataObject) -> None:
    digests = [hashlib.sha256(bytes([n])).hexdigest() for n in range(12)]
    links = [
        SavedLinks(digest, f"a{n % 3}", tuple(data.draw(st.lists(st.sampled_from([*digests[:n], "raw"]), max_size=4))))
        for n, digest in enumerate(digests)
    ]
    cut = data.draw(st.integers(0, 12))
    known = lineage.grown(lineage.grown(lineage.none(), links[:cut]), links[cut:])
    assert lineage.encoded(known) == lineage.encoded(lineage.decoded(lineage.encoded(known)))
    start = data.draw(st.sampled_from([*digests, "raw"]))
    distance, layer, steps = {}, {start}, 0
    while layer:
        distance |= dict.fromkeys(layer, steps)
        layer = {one.digest for one in links if set(one.inputs) & layer} - distance.keys()
        steps += 1
    starts = [at for at, node in enumerate(known.nodes.tolist()) if node == lineage.key(start)]
    reached = lineage.search(known, starts)
    got = {known.digest(at): int(reached[at]) for at in np.flatnonzero(reached >= 0).tolist()}
    assert got == (distance if starts else {})


def test_an_input_of_any_text_is_a_node() -> None:
    long = "x" * 65
    known = lineage.grown(lineage.none(), [SavedLinks("d" * 64, "a", (long, "é", "raw\0"))])
    assert len({lineage.key(text) for text in (long, "é", "raw\0")}) == len(known.inputs) == 3
