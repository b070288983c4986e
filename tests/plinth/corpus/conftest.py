"""Tiny corpora: documents and policies as manifests, without the stages that make them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context, manifest
from plinth.corpus import curate, verdicts
from plinth.corpus.dedup import exact
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.protected import contamination, holdout
from plinth.corpus.protected.parameters import Contamination, Holdout
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import EDIT_TYPE, read_table, write_table
from plinth.storage.workspace import Workspace
from tests.document_rows import document_part
from tests.rights import MIT

POLICY_SCHEMA = pa.schema(
    [
        pa.field("keep", pa.bool_(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("fired", pa.list_(pa.string())),
        pa.field("edits", EDIT_TYPE),
    ]
)


@dataclass(frozen=True)
class Doc:
    """One document of a test: its text and its verdict."""

    text: str
    name: str = ""
    fired: tuple[str, ...] = ()
    edits: tuple[tuple[int, int, str], ...] = ()

    @property
    def id(self) -> bytes:
        return hashlib.sha256((self.name or self.text).encode()).digest()[:16]


@dataclass
class Corpus:
    """Buckets of parts of documents, written to a store, and every stage run on them in order."""

    ctx: Context
    buckets: Mapping[str, Sequence[Sequence[Doc]]]
    dedup: Dedup = field(default_factory=Dedup)
    holdout_params: Holdout = field(default_factory=Holdout)
    contamination_params: Contamination = field(default_factory=Contamination)
    range_rows: int = 4_000_000
    earlier: Manifest | None = None

    def __post_init__(self) -> None:
        self.documents = {
            b: self._manifest(f"{b}/documents", parts, self._document) for b, parts in self.buckets.items()
        }
        self.policies = {b: self._manifest(f"{b}/policy", parts, self._policy) for b, parts in self.buckets.items()}

    def through_exact(self) -> Manifest:
        self.exact = exact.run(self.ctx, self.dedup, self.documents, self.policies, range_rows=self.range_rows)
        return self.exact

    def sign(self) -> None:
        self.signatures = {
            b: minhash.signatures(self.ctx, b, self.dedup.minhash, one) for b, one in self.documents.items()
        }

    def through_near(self) -> Manifest:
        self.through_exact()
        self.sign()
        self.near = minhash.run(
            self.ctx, self.dedup, self.documents, self.signatures, self.exact, range_rows=self.range_rows
        )
        return self.near

    def through_holdout(self) -> Manifest:
        self.through_near()
        self.holdout = holdout.run(self.ctx, self.holdout_params, self.documents, self.near, self.earlier)
        return self.holdout

    def through_contamination(self) -> Manifest:
        self.through_holdout()
        self.contamination = contamination.run(
            self.ctx, self.contamination_params, self.documents, self.near, self.holdout
        )
        return self.contamination

    def through_curated(self) -> dict[str, Manifest]:
        self.through_contamination()
        shared = (self.exact, self.near, self.holdout, self.contamination)
        self.verdicts = {
            b: verdicts.run(self.ctx, b, one, self.policies[b], *shared) for b, one in self.documents.items()
        }
        self.curated = {b: curate.run(self.ctx, b, one, self.verdicts[b], MIT) for b, one in self.documents.items()}
        return self.curated

    def rows(self, made: Manifest) -> dict[bytes, dict[str, Any]]:
        """A sidecar's rows by document id; `made` is over all buckets or over one."""
        found = {}
        for bucket, documents in self.documents.items():
            for part in documents.named("part-"):
                name = f"{bucket}/{part.name}" if "/" in made.parts[0].name else part.name
                if "/" not in made.parts[0].name and made.asset.split("/")[0] != bucket:
                    continue
                side = next(one for one in made.parts if one.name == name)
                ids = read_table(self.ctx.store, part, ["id"]).column("id").to_pylist()
                found.update(zip(ids, read_table(self.ctx.store, side).to_pylist(), strict=True))
        return found

    def survivors(self, made: Manifest) -> set[bytes]:
        return {identity for identity, row in self.rows(made).items() if row["survivor"]}

    def _manifest(self, asset: str, parts: Sequence[Sequence[Doc]], make: Any) -> Manifest:
        made = [make(f"part-{i:05d}.parquet", docs) for i, docs in enumerate(parts)]
        stats: dict[str, Any] = {"documents": sum(map(len, parts)), "rejects": {}}
        stats["text_bytes"] = sum(len(doc.text.encode()) for docs in parts for doc in docs)
        return manifest(asset, Step(name="test", version="1"), {}, made, stats)

    def _document(self, name: str, docs: Sequence[Doc]) -> Part:
        rows = (
            {"id": doc.id, "text": doc.text, "uri": f"test:{doc.name}", "snapshot": "2026-46",
             "source_bytes": len(doc.text.encode())}
            for doc in docs
        )  # fmt: skip
        return document_part(self.ctx, rows, name)

    def _policy(self, name: str, docs: Sequence[Doc]) -> Part:
        edits = [
            [{"start_cp": s, "end_cp": e, "replacement": r, "reason": "pii"} for s, e, r in doc.edits] for doc in docs
        ]
        columns = {
            "keep": [not doc.fired for doc in docs],
            "reason": [doc.fired[0] if doc.fired else None for doc in docs],
            "fired": [list(doc.fired) for doc in docs],
            "edits": edits,
        }
        return write_table(self.ctx.store, name, pa.table(columns, schema=POLICY_SCHEMA))


@dataclass
class Tools:
    """Tools with which tests build corpora."""

    ctx: Context

    Doc = Doc

    def corpus(self, buckets: Mapping[str, Sequence[Sequence[Doc]]], **params: Any) -> Corpus:
        return Corpus(self.ctx, buckets, **params)


@pytest.fixture
def tiny(tmp_path: Path) -> Tools:
    """Tiny corpora in a workspace of their own."""
    return Tools(Context(Workspace(tmp_path / "workspace").ensure()))


@pytest.fixture(scope="module")
def shared_tiny(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """Tiny corpora in a workspace that the tests of a module share."""
    return Tools(Context(Workspace(tmp_path_factory.mktemp("tiny") / "workspace").ensure()))
