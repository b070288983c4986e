"""Files out of the store: names, verification, faults."""

from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest, Part
from plinth.storage.state import checkout, resolve


def manifest(ctx: Context, *names: str, version: str = "1") -> Manifest:
    parts = tuple(Part(name=name, blob=ctx.store.put_bytes(name.encode())) for name in names)
    return Manifest(asset="web/shards", step="s", version=version, params={}, inputs={}, parts=parts)


def test_writes_files_under_the_parts_names(ctx: Context, tmp_path: Path) -> None:
    checkout(ctx.store, manifest(ctx, "a.bin", "web/b.bin").parts, tmp_path / "out")
    assert (tmp_path / "out" / "a.bin").read_bytes() == b"a.bin"
    assert (tmp_path / "out" / "web" / "b.bin").read_bytes() == b"web/b.bin"


def test_a_changed_blob_never_appears(ctx: Context, tmp_path: Path) -> None:
    made = manifest(ctx, "a.bin", "b.bin")
    path = ctx.store.path(made.parts[1].blob)
    path.chmod(0o644)
    path.write_bytes(b"B.bin")
    with pytest.raises(IntegrityError, match=r"b\.bin.*has changed"):
        checkout(ctx.store, made.parts, tmp_path / "out")
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["a.bin"]


def test_resolve_takes_a_prefix_when_only_one_has_it(ctx: Context) -> None:
    one, two = manifest(ctx, "a"), manifest(ctx, "b")
    for each in (one, two):
        ctx.refs.save(each)
    assert resolve(ctx.refs, one.digest) == one
    assert resolve(ctx.refs, one.digest[:20]) == one
    assert resolve(ctx.refs, two.digest[:20]) == two


def test_resolve_names_what_is_wrong(ctx: Context) -> None:
    for digest in ("beef00", "0" * 64):
        with pytest.raises(MissingError, match="no manifest"):
            resolve(ctx.refs, digest)
    for digest in ("abc", "xyzw", "../../etc"):
        with pytest.raises(MissingError, match="not a manifest digest"):
            resolve(ctx.refs, digest)
    for end in ("0", "1"):
        (ctx.workspace.manifests / f"{'a' * 63}{end}.json").write_bytes(b"{}")
    with pytest.raises(MissingError, match="ambiguous"):
        resolve(ctx.refs, "aaaa")
