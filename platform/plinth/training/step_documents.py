"""The documents of a training step with their sources: from the run's manifests alone, without torch.

    step ─► positions (Steps) ─► sequences (Order) ─► documents (index) ─► uri and source (curated parts)

Does not belong here: their tokens (data), their losses (step_losses).
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.records import Part
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth.tokens.order.batch import BatchSequence, documents_of_step
from plinth.training.config import RunConfig


@dataclass(frozen=True)
class StepDocument:
    """The tokens of one document in one row of a step's global batch.

    Attributes:
        row: of the global batch, in sequences.
        first, tokens: position in the sequence of S + 1 tokens, and length.
        source: the domain that its source declares.
        part, index: place of its text among the bucket's curated parts.
    """

    step: int
    row: int
    first: int
    tokens: int
    id: str
    bucket: str
    source: str
    uri: str
    part: int
    index: int


class StepDocuments:
    """The documents of a run by step.

    Raises:
        MissingError: the manifests of the run's data are not in its workspace.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.ctx = Context(Workspace(config.workspace))
        self.mixture = self.ctx.refs.load(config.mixture)
        self.shards = {name: self.ctx.refs.load(digest) for name, digest in config.shards.items()}
        self._places = lru_cache(maxsize=32)(self._read_places)

    def of_step(self, step: int) -> list[StepDocument]:
        """The documents of a step, in the order of the batch.

        Raises:
            MissingError: the run has no such step.
        """
        if not 1 <= step <= self.config.total_steps:
            raise MissingError(
                f"run {self.config.run_id} has no step {step}", expected=f"a step from 1 to {self.config.total_steps}"
            )
        sequences = documents_of_step(self.ctx, self.mixture, self.shards, step - 1, self.config.draws)
        return [seen for sequence in sequences for seen in self._seen(step, sequence)]

    def text(self, seen: StepDocument) -> str:
        """The text of a document, as it was curated."""
        table = read_table(self.ctx.store, self._curated(seen.bucket, seen.part), ["text"])
        text: str = table.column("text")[seen.index].as_py()
        return text

    def _seen(self, step: int, sequence: BatchSequence) -> list[StepDocument]:
        bucket, rows = sequence.sequence.stream, []
        for piece in sequence.documents:
            uris, sources = self._places(bucket, piece.document.part)
            row = piece.document.row
            rows.append(
                StepDocument(
                    step=step,
                    row=sequence.row,
                    first=piece.first,
                    tokens=piece.tokens,
                    id=piece.document.id,
                    bucket=bucket,
                    source=sources[row],
                    uri=uris[row],
                    part=piece.document.part,
                    index=row,
                )
            )
        return rows

    def _curated(self, stream: str, part: int) -> Part:
        bucket = stream.partition("/")[0]
        manifest = self.ctx.refs.load(self.shards[bucket].inputs[f"{bucket}/curated"])
        return manifest.named("part-")[part]

    def _read_places(self, bucket: str, part: int) -> tuple[list[str], list[str]]:
        """URI and declared domain of every document of a part."""
        table = read_table(self.ctx.store, self._curated(bucket, part), ["uri", "extra"])
        extras = table.column("extra").to_pylist()
        known: dict[str, str] = defaultdict(str)
        for extra in set(extras):
            known[extra] = str((json.loads(extra) if extra else {}).get("domain") or "")
        return table.column("uri").to_pylist(), [known[extra] for extra in extras]
