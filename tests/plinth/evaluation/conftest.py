"""A tiny tokenizer, model and curated buckets, all real."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.model.decoder import Decoder, build
from plinth.model.parameters import Model
from plinth.records import Manifest, Part
from plinth.storage.parts import read_table, write_table
from plinth.storage.workspace import Workspace
from tests.document_rows import document_part
from tests.model_folder import byte_level, save_folder

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the größte Ärger der Welt. "
S = 32  # tokens of a training sequence


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_level([TEXT], 320)


@pytest.fixture
def model_directory(tmp_path: Path, tokenizer: Tokenizer) -> Callable[..., Path]:
    """Writes a model directory; `change` may spoil the model first."""

    def write(change: Callable[[Decoder], None] = lambda model: None) -> Path:
        config = Model(layers=2, dim=32, heads=2, kv_heads=1, ffn_dim=48)
        model = build(config, tokenizer.get_vocab_size(), seed=1)
        with torch.no_grad():
            model.embed_tokens.mul_(20)  # so that predictions differ from uniform
            change(model)
        folder = tmp_path / "model"
        save_folder(folder, model, config, tokenizer, S)
        return folder

    return write


@pytest.fixture
def checkpoint(ctx: Context) -> Callable[[Path], Manifest]:
    """The manifest of a model directory."""

    def put(folder: Path) -> Manifest:
        parts = tuple(
            Part(name=path.name, blob=ctx.store.put_bytes(path.read_bytes())) for path in sorted(folder.iterdir())
        )
        return Manifest(asset="checkpoint", step="run", version="1", params={}, inputs={}, parts=parts)

    return put


@pytest.fixture
def curated(ctx: Context) -> Callable[..., Manifest]:
    """A bucket's curated manifest: training texts and parts of held-out texts."""

    def put(bucket: str, train: Sequence[str], *heldout: Sequence[str]) -> Manifest:
        parts = [_part(ctx, bucket, "part-00000.parquet", train)]
        parts += [_part(ctx, bucket, f"heldout-{i:05d}.parquet", texts) for i, texts in enumerate(heldout)]
        return Manifest(asset=f"{bucket}/curated", step="curate", version="1", params={}, inputs={}, parts=tuple(parts))

    return put


def _part(ctx: Context, bucket: str, name: str, texts: Sequence[str]) -> Part:
    rows = (
        {"id": hashlib.sha256(f"{bucket}:{text}".encode()).digest()[:16], "text": text, "uri": f"file:///{bucket}/{i}"}
        for i, text in enumerate(texts)
    )
    return document_part(ctx, rows, name)


@pytest.fixture
def ledger(ctx: Context) -> Callable[..., Manifest]:
    """Publish a ledger with these rows by bucket; missing columns get the values of a kept English document."""

    def make(**buckets: Sequence[dict[str, Any]]) -> Manifest:
        parts = []
        for bucket, rows in sorted(buckets.items()):
            whole = [
                {**DEFAULTS, "bucket": bucket, "uri": f"file:///{bucket}/{i}", **row} for i, row in enumerate(rows)
            ]
            parts.append(write_table(ctx.store, f"{bucket}/part-00000.parquet", pa.Table.from_pylist(whole, LEDGER)))
        return Manifest(asset="ledger", step="s", version="1", params={}, inputs={}, parts=tuple(parts))

    return make


LEDGER = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("bucket", pa.string()),
        pa.field("domain", pa.string()),
        pa.field("uri", pa.string()),
        pa.field("licence", pa.string()),
        pa.field("may_commercial", pa.bool_()),
        pa.field("decision", pa.string()),
        pa.field("cluster_size", pa.int32()),
        pa.field("language__label", pa.string()),
        pa.field("language__score", pa.float32()),
        pa.field("pii__spans", pa.int32()),
    ]
)
DEFAULTS = {"domain": "a.example", "licence": "MIT", "decision": "heldout", "cluster_size": 1, "pii__spans": 0,
            "may_commercial": True, "language__label": "en", "language__score": 0.9}  # fmt: skip


@pytest.fixture
def ledger_of(ctx: Context, ledger: Callable[..., Manifest]) -> Callable[[Mapping[str, Manifest]], Manifest]:
    """The ledger of all held-out documents of some buckets; languages by the order of their ids."""

    def make(buckets: Mapping[str, Manifest]) -> Manifest:
        rows: dict[str, list[dict[str, Any]]] = {}
        for bucket, made in buckets.items():
            ids = [id_ for part in made.named("heldout-") for id_ in read_table(ctx.store, part)["id"].to_pylist()]
            languages = dict(zip(sorted(ids), ["en", "de", "fr"] * len(ids), strict=False))
            rows[bucket] = [{"id": id_.hex(), "language__label": languages[id_]} for id_ in ids]
        return ledger(**rows)

    return make
