"""Ancestry down to the sources, and the first link that does not hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from plinth import fingerprint
from plinth.errors import LineageError, MissingError
from plinth.provenance import lineage
from plinth.provenance.statements import PROVENANCE_SCHEMA
from plinth.records import Part


def damage(line: Any, part: Part) -> None:
    path = line.ctx.store.path(part.blob)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_walk_reaches_every_source_inputs_first(line: Any) -> None:
    found = lineage.walk(line.ctx, line.made["evaluation"].digest[:10])
    order = [link.asset for link in found.links]
    assert order[-1] == "evaluation"
    assert order.index("prose/documents") < order.index("prose/curated") < order.index("prose/shards")
    assert order.index("mixture") < order.index("run") < order.index("checkpoint")
    assert found.sources == {
        "code/documents:code/sources": "5" * 64,
        "prose/documents:prose/sources": "5" * 64,
    }
    with pytest.raises(MissingError):
        lineage.walk(line.ctx, "feedbeef")


def test_verify_counts_what_it_proved(line: Any) -> None:
    found = lineage.verify(line.ctx, line.made["checkpoint"])
    assert (found.asset, found.digest, found.complete) == ("checkpoint", line.made["checkpoint"].digest, True)
    links = lineage.walk(line.ctx, line.made["checkpoint"].digest).links
    blobs = {part.blob.sha256: part.blob.bytes for link in links for part in line.ctx.refs.load(link.digest).parts}
    assert (found.manifests, found.blobs, found.bytes) == (len(links), len(blobs), sum(blobs.values()))
    assert not lineage.verify(line.ctx, line.made["checkpoint"].digest, fast=True).complete


def test_a_flipped_byte_in_a_source_document_is_named_from_far_away(line: Any) -> None:
    damage(line, line.made["prose/documents"].parts[0])
    lineage.verify(line.ctx, line.made["evaluation"], fast=True)
    with pytest.raises(LineageError, match=r"breaks at prose/documents [0-9a-f]{12}: part-00000\.parquet"):
        lineage.verify(line.ctx, line.made["evaluation"])


def test_the_nearest_broken_link_comes_first(line: Any) -> None:
    for asset in ("prose/documents", "code/shards", "checkpoint"):
        damage(line, line.made[asset].parts[0])
    with pytest.raises(LineageError, match=r"breaks at checkpoint [0-9a-f]{12}: model\.safetensors"):
        lineage.verify(line.ctx, line.made["evaluation"])


def test_a_missing_blob_is_seen_by_the_fast_mode(line: Any) -> None:
    line.ctx.store.path(line.made["code/shards"].parts[0].blob).unlink()
    with pytest.raises(LineageError, match="breaks at code/shards"):
        lineage.verify(line.ctx, line.made["checkpoint"], fast=True)


def test_a_changed_or_missing_manifest_is_named(line: Any) -> None:
    path = line.ctx.workspace.manifests / f"{line.made['mixture'].digest}.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"main"', b'"mian"'))
    with pytest.raises(LineageError, match="breaks at mixture"):
        lineage.verify(line.ctx, line.made["checkpoint"])
    path.unlink()
    with pytest.raises(LineageError, match="breaks at mixture"):
        lineage.walk(line.ctx, line.made["checkpoint"].digest)


@pytest.fixture
def directory(line: Any, tmp_path: Path) -> Path:
    """A checkpoint directory as registering makes it."""
    folder, made = tmp_path / "model", line.made["checkpoint"]
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    content = {
        "schema": PROVENANCE_SCHEMA,
        "checkpoint": {"asset": "checkpoint", "digest": made.digest},
        "files": {part.name: {"sha256": part.blob.sha256, "bytes": part.blob.bytes} for part in made.parts},
        "chain": [link.model_dump(mode="json") for link in lineage.walk(line.ctx, made.digest).links],
    }
    (folder / "provenance.json").write_bytes(fingerprint.canonical(content))
    return folder


def test_a_directory_is_proved_through_its_provenance(line: Any, directory: Path) -> None:
    assert lineage.verify(line.ctx, directory) == lineage.verify(line.ctx, line.made["checkpoint"])


def test_a_changed_file_or_provenance_of_a_directory_is_named(line: Any, directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(LineageError, match=r"first link: model\.safetensors has changed"):
        lineage.verify(line.ctx, directory)
    (directory / "model.safetensors").write_bytes(b"weights")
    path = directory / "provenance.json"
    content = json.loads(path.read_bytes())
    path.write_bytes(fingerprint.canonical({**content, "chain": content["chain"][1:]}))
    with pytest.raises(LineageError, match="a different ancestry"):
        lineage.verify(line.ctx, directory)
    path.write_bytes(fingerprint.canonical({**content, "checkpoint": {"digest": "0" * 64}}))
    with pytest.raises(LineageError, match="first link: checkpoint manifest"):
        lineage.verify(line.ctx, directory)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"schema":"other"}', None])
def test_a_directory_without_provenance_is_named(line: Any, directory: Path, content: bytes | None) -> None:
    path = directory / "provenance.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LineageError, match="has no provenance"):
        lineage.verify(line.ctx, directory)
