"""The steps and checkpoints of every run in the workspace that saw tokens of a stream.

A run over the same shards is asked for the very tokens. One over other shards of the bucket (text was added or taken
away since) is asked where its shards have the document, and there for the tokens at the same distance from its
beginning; `by` says which.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.provenance import exposure
from plinth.provenance.exposure import MAX_STEPS
from plinth.records import bucket_of
from plinth.tokens.order.batch import DocumentUse, SpanSteps
from plinth.tokens.shards.index import DocumentSpan
from plinth.training.config import RunConfig, load


class TracedRuns:
    """All runs of a workspace; what a run's manifests say is read once, and only when it is asked for."""

    def __init__(self, ctx: Context) -> None:
        self._runs = [_Run(ctx, load(path)) for path in sorted(ctx.workspace.runs.glob("*/config.json"))]

    def saw(self, shards: str, stream: str, start: int, tokens: int, document: DocumentSpan) -> list[dict[str, Any]]:
        """Runs that trained on some of these tokens.

        Args:
            shards: digest of the shards that the stream is of.
            start, tokens: in the stream.
            document: that holds them.

        Returns:
            `run`, `steps` that took sequences with some of the tokens, `times_seen`, `most_tokens` that one sequence
            held, `checkpoints` after the first of the steps, `by` (`tokens` or `document`).
        """
        return [seen for run in self._runs if (seen := run.saw(shards, stream, start, tokens, document))]


class _Run:
    def __init__(self, ctx: Context, config: RunConfig) -> None:
        self._ctx, self._config = ctx, config

    @cached_property
    def _spans(self) -> SpanSteps | None:
        try:
            return SpanSteps(self._ctx, self._ctx.refs.load(self._config.mixture), self._config.draws)
        except MissingError:
            return None

    @cached_property
    def _trained(self) -> exposure.TrainedSteps:
        return exposure.trained_steps(self._config)

    @cached_property
    def _checkpoints(self) -> list[int]:
        return exposure.checkpoints(self._ctx, self._config)

    def saw(self, shards: str, stream: str, start: int, tokens: int, document: DocumentSpan) -> dict[str, Any] | None:
        bucket = bucket_of(stream)
        if bucket not in self._config.shards:
            return None
        if self._spans is None:
            return {"run": self._config.run_id, "unknown": "the manifests of its data are not in this workspace"}
        same = self._config.shards[bucket] == shards
        try:
            uses = self._spans.of(stream, start, tokens) if same else self._by_document(bucket, start, tokens, document)
        except MissingError:
            return {"run": self._config.run_id, "unknown": "parts of its data are not in this workspace"}
        seen = [use for use in uses if use.step + 1 in self._trained]
        if not seen:
            return None
        steps = sorted({use.step + 1 for use in seen})
        return {
            "run": self._config.run_id,
            "steps": steps[:MAX_STEPS],
            "times_seen": len(seen),
            "most_tokens": max(use.tokens for use in seen),
            "checkpoints": [step for step in self._checkpoints if step >= steps[0]],
            "by": "tokens" if same else "document",
        }

    def _by_document(self, bucket: str, start: int, tokens: int, document: DocumentSpan) -> list[DocumentUse]:
        assert self._spans is not None
        uses = list[DocumentUse]()
        for stream, own in self._spans.find(bucket, document.id):
            same = own.tokens == document.tokens  # else its text was edited since: all of it
            begin, count = (own.start + start - document.start, tokens) if same else (own.start, own.tokens)
            uses += self._spans.of(stream, begin, count)
        return uses
