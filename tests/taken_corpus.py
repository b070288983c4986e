"""A bucket with all that a takedown searches, and a ledger by hand: documents, near index, tokens, trace index.

`Corpus.build` makes it by the stages' own functions, the exclusion list included, as the assets do.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pyarrow as pa

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.corpus.dedup.near import index, minhash
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.documents import documents
from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket, Documents, Source, Terms
from plinth.model.parameters import Model
from plinth.provenance.ledger_columns import BASE
from plinth.records import Manifest
from plinth.storage.parts import read_table, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.training import preparation
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Training
from plinth.training.telemetry.timeline import Timeline
from plinth_audit.trace import trace_index

WORDS = [f"{a}{b}" for a in ("river", "stone", "cloud", "field", "house") for b in ("song", "side", "work", "light")]
FILES, LINES = 5, 8
PAGE, COPY, QUOTE = (f"https://{place}" for place in ("h0.example.org/0", "h3.example.org/1", "h4.example.org/2"))


def essay(seed: int, words: int = 120) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def copied(text: str) -> str:
    """A near duplicate."""
    words = text.split()
    return " ".join([*words[:50], "different", *words[51:]])


def _cluster(uri: str) -> dict[str, object]:
    return {"cluster": "c" * 32, "cluster_size": 2} if uri in (PAGE, COPY) else {}


class Corpus:
    """Forty documents in five parts. `essay(0)` is page 0 of host 0; host 3 has a near duplicate of it, host 4 quotes a
    third of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ctx = Context(Workspace(root / "workspace").ensure())
        (root / "in").mkdir()
        for file in range(FILES):
            texts = [essay(100 * file + line) for line in range(LINES)]
            if file == 3:
                texts[1] = copied(essay(0))
            if file == 4:
                texts[2] = f"{essay(77, 300)} {' '.join(essay(0).split()[:40])} {essay(78, 300)}"
            self.write(f"{file}.jsonl", {f"https://h{file}.example.org/{n}": text for n, text in enumerate(texts)})

    def copied(self, root: Path) -> Corpus:
        """A copy below `root`, which a test may change."""
        made = object.__new__(Corpus)
        made.root = root
        shutil.copytree(self.root, root)
        made.ctx = Context(Workspace(root / "workspace"))
        return made

    def write(self, name: str, texts: dict[str, str]) -> None:
        lines = [json.dumps({"uri": uri, "text": text}) for uri, text in texts.items()]
        (self.root / "in" / name).write_text("\n".join(lines))

    def build(self) -> Manifest:
        """Everything, made and published; returns the documents."""
        terms = Terms(train=True, redistribute=True, commercial=True)
        facts = {"kind": "jsonl", "path": "in", "licence": "MIT", "domain": "d", "snapshot": "s", "terms": terms}
        bucket = Bucket(description="", owner="o", sources=(Source.model_validate(facts),))
        found, listed = inventory(bucket, self.root), exclusions.read(self.ctx)
        made = documents.run(self.ctx, "web", bucket, Documents(part_bytes=10), found, exclusions=listed)
        self.publish(made)
        signed = minhash.signatures(self.ctx, "web", MinHash(), made)
        self.publish(index.run(self.ctx, MinHash(), {"web": made}, {"web": signed}))
        curated = Manifest(asset="web/curated", step="curated", version="1", params={},
                           inputs={"web/documents": made.digest}, parts=made.named("part-"))  # fmt: skip
        trained = tokenizer.run(self.ctx, TokenizerParameters(vocab_size=400), {"web": curated})
        cut = shards.run(self.ctx, "web", Shards(), trained, curated)
        phases = (Phase(name="main", fraction=1.0, weights={"web": 1.0}),)
        tokens = int(cut.stats["tokens"]) // 16 * 16
        wanted = Mixture(sequence_tokens=16, total_tokens=tokens, phases=phases, block_sequences=4, max_epochs=50)
        self.publish(mixture.run(self.ctx, wanted, {"web": cut}))
        for one in (curated, trained, cut, trace_index.run(self.ctx, "web", cut, curated), self.ledger(made)):
            self.publish(one)
        return made

    def train(self) -> RunConfig:
        """A run over the published shards that took all its steps; its last checkpoint is published."""
        mixed, cut, trained = (self.ctx.refs.current(name) for name in ("mixture", "web/shards", "tokenizer"))
        model = Model(layers=1, dim=8, heads=1, kv_heads=1, ffn_dim=8)
        training = Training(model=model, global_batch_sequences=2, micro_batch_sequences=1)
        run = preparation.prepare(self.ctx, "tiny", training, mixed, {"web": cut}, trained)
        events = Timeline(run.directory.events)
        for step in range(1, run.total_steps + 1):
            events.append("step", step=step, loss=1.0)
        events.append("checkpoint", step=run.total_steps)
        stats = {"run_id": run.run_id, "step": run.total_steps}
        made = Manifest(asset="run", step="run", version="1", params={}, inputs={"mixture": mixed.digest}, parts=())
        self.publish(made)
        self.publish(Manifest(asset="checkpoint", step="checkpoint", version="1", params={},
                              inputs={"run": made.digest}, parts=(), stats=stats))  # fmt: skip
        return run

    def ledger(self, made: Manifest) -> Manifest:
        """Its fixed columns, all trained on; page 0 and its near duplicate are a cluster."""
        parts = []
        for part in made.named("part-"):
            rows = read_table(self.ctx.store, part).select(["id", "uri", "snapshot", "licence", "mime", "source_bytes"])
            known = {"bucket": "web", "decision": "train", "fired": [], "edits": 0, "edited_characters": 0}
            listed = [{**row, **known, "id": row["id"].hex(), **_cluster(row["uri"])} for row in rows.to_pylist()]
            table = pa.Table.from_pylist(listed, schema=BASE)
            parts.append(write_table(self.ctx.store, f"web/{part.name}", table))
        stats = {"documents": made.stats["documents"], "rejects": 0}
        return Manifest(asset="ledger", step="ledger", version="1", params={},
                        inputs={"web/documents": made.digest}, parts=tuple(parts), stats=stats)  # fmt: skip

    def publish(self, made: Manifest) -> None:
        self.ctx.refs.publish(made, made.digest)

    def uris(self, made: Manifest) -> set[str]:
        return {row["uri"] for part in made.named("part-") for row in read_table(self.ctx.store, part).to_pylist()}
