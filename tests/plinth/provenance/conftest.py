"""A small line from sources to a run: judgments by hand, tokens and order by the real stages."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.corpus.documents.documents import document_id
from plinth.model.parameters import Model
from plinth.records import Manifest, Part
from plinth.storage.parts import DOCUMENT_SCHEMA, EDIT_TYPE, REJECT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.training import config, preparation
from plinth.training.parameters.run import Training
from plinth.training.telemetry.timeline import Timeline

ALICE = "alice was beginning to get very tired of sitting by her sister on the bank, "
TEXTS = {
    "prose": [ALICE * 3, ALICE * 3 + "and so on", "write to a@b.example at once. " * 4, "short"],
    "code": ["def f(x):\n    return x + 1\n" * 6, "class A:\n    pass\n" * 9],
}
GLOBAL_BATCH = 2


@dataclass
class Line:
    """A workspace with everything published, and what the tests ask about."""

    ctx: Context
    made: dict[str, Manifest] = field(default_factory=dict)
    run: config.RunConfig | None = None

    def id(self, bucket: str, row: int) -> str:
        return document_id(bucket, uri(bucket, row), TEXTS[bucket][row].encode()).hex()

    def put(self, asset: str, tables: Mapping[str, pa.Table], inputs: Sequence[str], **changes: Any) -> Manifest:
        parts = tuple(write_table(self.ctx.store, name, table) for name, table in tables.items())
        return self.publish(asset, parts, {name: self.made[name].digest for name in inputs}, **changes)

    def publish(self, asset: str, parts: tuple[Part, ...], inputs: Mapping[str, str], **changes: Any) -> Manifest:
        base = {"asset": asset, "step": asset, "version": "1", "params": {}, "inputs": inputs, "parts": parts}
        return self.keep(Manifest(**{**base, **changes}))

    def keep(self, manifest: Manifest) -> Manifest:
        self.ctx.refs.publish(manifest, key=manifest.digest)
        self.made[manifest.asset] = manifest
        return manifest


def uri(bucket: str, row: int) -> str:
    return f"https://example.org/{bucket}/page-{row}.html"


def rows(bucket: str, texts: Mapping[int, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": document_id(bucket, uri(bucket, row), TEXTS[bucket][row].encode()),
                "text": text,
                "uri": uri(bucket, row),
                "captured_at": datetime(2026, 11, 1, tzinfo=UTC),
                "snapshot": "2026-46",
                "licence": "CC-BY-4.0",
                "mime": "text/plain",
                "source_bytes": 10 * len(text),
                "extra": '{"n": 1}',
            }
            for row, text in texts.items()
        ],
        schema=DOCUMENT_SCHEMA,
    )


def clusters(ids: Sequence[str | None], sizes: Sequence[int], survivors: Sequence[bool]) -> pa.Table:
    schema = pa.schema(
        [("considered", pa.bool_()), ("cluster", pa.binary(16)), ("size", pa.int32()), ("survivor", pa.bool_())]
    )
    columns = [
        [id_ is not None for id_ in ids], [bytes.fromhex(id_) if id_ else None for id_ in ids], sizes, survivors
    ]  # fmt: skip
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Line:
    """The line, made once."""
    return build(Context(Workspace(tmp_path_factory.mktemp("line") / "workspace").ensure()))


@pytest.fixture
def line(built: Line, tmp_path: Path) -> Line:
    """A copy of the line that a test may damage."""
    assert built.run is not None
    workspace = Workspace(tmp_path / "workspace")
    shutil.copytree(built.ctx.workspace.root, workspace.root)
    run = built.run.model_copy(update={"workspace": str(workspace.root)})
    config.write(run)
    return Line(Context(workspace), dict(built.made), run)


def build(ctx: Context) -> Line:
    """prose: 0 trains, 1 is its near duplicate, 2 trains with an edit, 3 is dropped; code: 0 trains, 1 is held out."""
    made = Line(ctx)
    reject = {"uri": "https://example.org/broken", "where": "record 7", "reason": "timeout", "detail": "5 s",
              "source_bytes": 99}  # fmt: skip
    for bucket, texts in TEXTS.items():
        tables = {"part-00000.parquet": rows(bucket, dict(enumerate(texts)))}
        if bucket == "prose":
            tables["rejects-00000.parquet"] = pa.Table.from_pylist([reject], schema=REJECT_SCHEMA)
        parts = tuple(write_table(ctx.store, name, table) for name, table in tables.items())
        made.publish(f"{bucket}/documents", parts, {f"{bucket}/sources": "5" * 64})
    judged(made)
    trained(made)
    return made


def judged(made: Line) -> None:
    """Sidecars, verdicts and curated text."""
    edit = {"start_cp": 9, "end_cp": 20, "replacement": "<email>", "reason": "pii"}
    keep = {"prose": [True, True, True, False], "code": [True, True]}
    decisions = {"prose": ["train", "drop", "train", "drop"], "code": ["train", "heldout"]}
    reasons = {"prose": [None, "near_duplicate", None, "too_short"], "code": [None, None]}
    first = made.id("prose", 0)
    near = {"prose": [first, first, made.id("prose", 2), None], "code": [made.id("code", 0), made.id("code", 1)]}
    sizes = {"prose": [2, 2, 1, 0], "code": [1, 1]}
    survivors = {"prose": [True, False, True, False], "code": [True, True]}
    part = "part-00000.parquet"
    for bucket, texts in TEXTS.items():
        own, n = [f"{bucket}/documents"], len(texts)
        scores = {"label": ["en"] * n, "score": pa.array([0.98] * n, pa.float32())}
        made.put(f"{bucket}/language", {part: pa.table(scores)}, own)
        edits = [[edit] if (bucket, row) == ("prose", 2) else [] for row in range(n)]
        fired = [["too_short"] if reason == "too_short" else [] for reason in reasons[bucket]]
        policy = {
            "keep": keep[bucket],
            "reason": pa.array([why if why == "too_short" else None for why in reasons[bucket]], pa.string()),
            "fired": pa.array(fired, pa.list_(pa.string())),
            "edits": pa.array(edits, EDIT_TYPE),
        }
        made.put(f"{bucket}/policy", {part: pa.table(policy)}, own)
        verdicts = {
            "id": pa.array([bytes.fromhex(made.id(bucket, row)) for row in range(n)], pa.binary(16)),
            "decision": decisions[bucket],
            "reason": pa.array(reasons[bucket], pa.string()),
            "cluster": pa.array([bytes.fromhex(id_) if id_ else None for id_ in near[bucket]], pa.binary(16)),
            "cluster_size": pa.array(sizes[bucket], pa.int32()),
            "edits": policy["edits"],
        }
        made.put(f"{bucket}/verdicts", {part: pa.table(verdicts)}, own)
    every = [f"{bucket}/documents" for bucket in TEXTS]
    alone = {bucket: [made.id(bucket, row) for row in range(len(texts))] for bucket, texts in TEXTS.items()}
    names = {bucket: f"{bucket}/{part}" for bucket in TEXTS}
    exact = {names[b]: clusters(alone[b], [1] * len(alone[b]), [True] * len(alone[b])) for b in TEXTS}
    made.put("dedup/exact", exact, every)
    made.put("dedup/minhash", {names[b]: clusters(near[b], sizes[b], survivors[b]) for b in TEXTS}, every)
    held = {names[b]: pa.table({"held_out": [each == "heldout" for each in decisions[b]]}) for b in TEXTS}
    made.put("holdout", held, every)
    for bucket, texts in TEXTS.items():
        train = {row: text for row, text in enumerate(texts) if decisions[bucket][row] == "train"}
        if bucket == "prose":
            train[2] = train[2][:9] + "<email>" + train[2][20:]
        heldout = {row: text for row, text in enumerate(texts) if decisions[bucket][row] == "heldout"}
        tables = {part: rows(bucket, train), "heldout-00000.parquet": rows(bucket, heldout)}
        made.put(f"{bucket}/curated", tables, [f"{bucket}/documents", f"{bucket}/verdicts"])


def trained(made: Line) -> None:
    """Tokenizer, shards, mixture; a run that came two steps short of its end; a checkpoint and its evaluation."""
    curated = {bucket: made.made[f"{bucket}/curated"] for bucket in TEXTS}
    trained_on = made.keep(tokenizer.run(made.ctx, TokenizerParameters(vocab_size=300), curated))
    cut = {b: made.keep(shards.run(made.ctx, b, Shards(), trained_on, curated[b])) for b in TEXTS}
    phases = (Phase(name="main", fraction=1.0, weights={"prose": 0.5, "code": 0.5}),)
    wanted = Mixture(sequence_tokens=16, total_tokens=16 * 20, phases=phases, block_sequences=4, max_epochs=50)
    mixed = made.keep(mixture.run(made.ctx, wanted, cut))
    training = Training(
        model=Model(layers=1, dim=8, heads=1, kv_heads=1, ffn_dim=8), global_batch_sequences=GLOBAL_BATCH,
        micro_batch_sequences=1,
    )  # fmt: skip
    made.run = preparation.prepare(made.ctx, "tiny", training, mixed, cut, trained_on)
    timeline = Timeline(made.run.directory.events)
    for step in range(1, made.run.total_steps - 1):
        timeline.append("step", step=step, loss=1.0)
    run = made.publish("run", (), {"mixture": mixed.digest, "tokenizer": trained_on.digest})
    weights = Part(name="model.safetensors", blob=made.ctx.store.put_bytes(b"weights"))
    stats = {"run_id": made.run.run_id, "step": made.run.total_steps - 2}
    checkpoint = made.publish("checkpoint", (weights,), {"run": run.digest}, stats=stats)
    made.publish("evaluation", (), {"checkpoint": checkpoint.digest, "prose/curated": curated["prose"].digest})
