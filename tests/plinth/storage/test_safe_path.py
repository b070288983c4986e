"""Names that others have written: none leaves its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.errors import CheckpointError, IntegrityError
from plinth.records import Blob, Manifest, Part
from plinth.storage import dvc, seal
from plinth.storage.atomic import join, relative
from plinth.storage.state import Ref, State

SAFE = ["a", "a/b.bin", "web/part-00000.parquet", ".hidden", "ä/ü", "a..b", "..a/b", "a b"]
UNSAFE = [
    *("", ".", "..", "/", "/etc/passwd", "../x", "a/../x", "a/..", "./a", "a//b", "a/", "/../x"),
    *("a\\..\\b", "C:/x", "c:x", "file:///x", "s3://b/k", "a\x00b", "a\nb", "\x1b[2J", "~/../../x"),
]


@pytest.mark.parametrize("name", SAFE)
def test_plain_names_stay(tmp_path: Path, name: str) -> None:
    assert join(tmp_path, name, "list") == tmp_path / name


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_names_are_refused_with_list_and_entry(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"step-1/manifest\.json names") as caught:
        join(tmp_path, name, "step-1/manifest.json", error=CheckpointError)
    assert repr(name) in str(caught.value)
    assert "\x1b" not in str(caught.value)


@given(st.lists(st.sampled_from(["a", "..", ".", "", "/", "\\", "\x00", "C:", "b.c", "~"]), max_size=5))
def test_what_is_accepted_stays_below(parts: list[str]) -> None:
    base = Path("/base/folder")
    try:
        name = relative("/".join(parts), "list")
    except IntegrityError:
        return
    assert (base / name).resolve().is_relative_to(base)
    assert (base / name).resolve() != base


def test_links_may_not_lead_out(tmp_path: Path) -> None:
    base, outside = tmp_path / "base", tmp_path / "outside"
    (base / "sub").mkdir(parents=True)
    outside.mkdir()
    (base / "folder").symlink_to(outside)
    (base / "file").symlink_to(outside / "absent")
    (base / "again").symlink_to("folder")
    (base / "own").symlink_to("sub")
    for name in ("folder/x", "file", "folder", "again/x"):
        with pytest.raises(IntegrityError, match="names"):
            join(base, name, "list")
    assert join(base, "own/x", "list") == base / "own/x"
    linked = tmp_path / "linked"
    linked.symlink_to(base)  # the base itself may be a link
    assert join(linked, "x", "list") == linked / "x"


def test_a_link_in_a_checkout_is_not_followed(ctx: Context, tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    out.mkdir()
    outside.mkdir()
    (out / "web").symlink_to(outside)
    made = Manifest(
        asset="a",
        step="s",
        version="1",
        params={},
        inputs={},
        parts=(Part(name="web/x", blob=ctx.store.put_bytes(b"x")),),
    )
    ctx.refs.save(made)
    with pytest.raises(IntegrityError, match="names 'web/x'"):
        dvc.restore(State(ctx.workspace), made.digest, out)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("md5", ["../../../../x", "/etc/passwd", "ab", "A" * 32, "a" * 32 + "\n"])
def test_a_blob_is_addressed_by_its_digest_alone(md5: str) -> None:
    with pytest.raises(ValueError, match="md5"):
        Blob(md5=md5, sha256="0" * 64, bytes=1)


def test_a_reference_that_climbs_is_refused(ctx: Context) -> None:
    ref = Ref(asset="web", digest="../../../../../tmp/x", key="k").sealed_with(seal.load(ctx.workspace.trust_folder))
    (ctx.workspace.refs / "web.json").write_bytes(ref.model_dump_json().encode())
    with pytest.raises(IntegrityError, match="is outside of its directory"):
        ctx.refs.current("web")
