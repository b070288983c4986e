"""Manifests by digest and the published state of assets."""

import pytest

from plinth.compute.context import Context
from plinth.errors import ConflictError, IntegrityError, MissingError
from plinth.records import Manifest


def manifest(asset: str = "web/documents", version: str = "1") -> Manifest:
    return Manifest(asset=asset, step="s", version=version, params={}, inputs={}, parts=(), stats={"rows": 1})


def test_saved_is_not_published(ctx: Context) -> None:
    digest = ctx.refs.save(manifest())
    assert ctx.refs.load(digest) == manifest()
    assert ctx.refs.ref("web/documents") is None
    with pytest.raises(MissingError, match="plinth run --select web/documents"):
        ctx.refs.current("web/documents")


def test_publish_moves_the_reference_and_keeps_history(ctx: Context) -> None:
    ctx.refs.publish(manifest(), key="k1")
    ctx.refs.publish(manifest(version="2"), key="k2")
    ref = ctx.refs.ref("web/documents")
    assert ref is not None
    assert (ref.key, ref.digest) == ("k2", manifest(version="2").digest)
    assert ctx.refs.current("web/documents").version == "2"
    assert ctx.refs.load(manifest().digest).version == "1"


def test_nobody_publishes_over_what_it_has_not_seen(ctx: Context) -> None:
    ctx.refs.publish(manifest(), key="k1")
    other = Context(ctx.workspace)
    assert other.refs.ref("web/documents") == ctx.refs.ref("web/documents")
    ctx.refs.publish(manifest(version="2"), key="k2")
    with pytest.raises(ConflictError, match="another process published web/documents") as lost:
        other.refs.publish(manifest(version="3"), key="k3")
    assert manifest(version="2").digest in str(lost.value)
    assert ctx.refs.current("web/documents").version == "2"
    Context(ctx.workspace).refs.publish(manifest(version="3"), key="k3")  # who reads first may


def test_an_asset_and_one_below_it_do_not_collide(ctx: Context) -> None:
    for asset in ("tokenizer", "tokenizer/audit", "web/documents"):
        ctx.refs.publish(manifest(asset), key="k")
    assert [ref.asset for ref in ctx.refs.all()] == ["tokenizer", "tokenizer/audit", "web/documents"]


def test_every_flipped_byte_of_a_manifest_is_noticed_and_saving_heals(ctx: Context) -> None:
    digest = ctx.refs.save(manifest())
    path = ctx.workspace.manifests / f"{digest}.json"
    good = path.read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError):
            ctx.refs.load(digest)
    ctx.refs.save(manifest())
    assert path.read_bytes() == good


def test_missing_manifest_and_broken_reference_are_named(ctx: Context) -> None:
    with pytest.raises(MissingError, match="no manifest"):
        ctx.refs.load("0" * 64)
    path = ctx.workspace.refs / "web" / "documents.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"asset": "web/')
    with pytest.raises(IntegrityError, match="not a reference"):
        ctx.refs.ref("web/documents")
    with pytest.raises(IntegrityError, match="not a reference"):
        list(ctx.refs.all())
