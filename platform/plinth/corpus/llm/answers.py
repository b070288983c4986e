"""Stage that asks a language model about documents, once per distinct text, and writes its answers as columns.

    documents ─► sample of texts (workers) ─► one request per text without a record (this process) ─► aligned parts

Questions of all parts are in flight together. An answer is recorded when it arrives, and a part of the result when all
its answers have: so whatever ends the process, only requests in flight are repeated. A row has no answer if it was not
sampled, or for the reason in the column `reason`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context, Item, add_stats, manifest, renamed, run_items
from plinth.corpus.llm.asking import MARK, STEP, Asking, too_many
from plinth.corpus.llm.parameters import Endpoint, Questions
from plinth.corpus.sidecars import ranks
from plinth.errors import SourceError
from plinth.fingerprint import UNICODE
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, write_batches
from plinth.storage.store import Store
from plinth_text.arrays import Bools

#: Bump when the same responses give other answers, or when the sample of documents changes.
VERSION = "1"
QUESTION_SCHEMA = pa.schema(
    [pa.field("row", pa.int64(), nullable=False), pa.field("text", pa.large_string(), nullable=False)]
)


@dataclass(frozen=True)
class _Sample:
    documents: Part
    share: float
    seed: int
    max_characters: int


def read_prompt(ctx: Context, made: Manifest) -> str:
    """Return the prompt in a published list.

    Raises:
        SourceError: the list is not one UTF-8 file with the mark of the document.
    """
    files = [ctx.store.read_bytes(part.blob) for part in made.parts]
    try:
        (text,) = (data.decode() for data in files)
    except ValueError:
        text = ""
    if MARK not in text:
        raise SourceError(
            f"{made.asset} is not a prompt",
            found=f"{len(files)} files, {sum(map(len, files)):,} bytes",
            expected=f"one UTF-8 text file that contains {MARK} where the document goes",
            remedy="correct the file",
        )
    return text


def run(
    ctx: Context,
    asset: str,
    questions: Questions,
    endpoint: Endpoint,
    documents: Manifest,
    prompt: Manifest,
    *,
    share: float = 1.0,
    schema: Mapping[str, Any] | None = None,
    check: Callable[[str], str] = lambda text: "",
    max_reject_rate: float = 1.0,
) -> Manifest:
    """Ask the questions about a bucket's documents that have no answer yet, and return the manifest of the answers.

    Args:
        share: share of the documents to ask about; chosen by a hash of their text.
        schema: JSON schema of the answers, sent with each question; None for free text.
        check: function that returns the reason why a text is not an answer, or an empty text.
        max_reject_rate: maximum share of the questions without an answer.

    Returns:
        Manifest of `part-*` with `SCHEMA`, aligned with `documents`. Statistics: `documents`, `questions`, `answers`,
        `rejects` (reason -> documents), `input_tokens` and `output_tokens`.

    Raises:
        BudgetError: the next question could exceed the endpoint's budget; answers that arrived are kept.
        EndpointError: the endpoint is down, or cannot answer any question.
        RejectRateError: too many questions have no answer.
        SourceError: the prompt is not usable.
    """
    text = read_prompt(ctx, prompt)
    identity = questions.identity(hashlib.sha256(text.encode()).hexdigest(), None if schema is None else dict(schema))
    step = Step(name=STEP, version=VERSION, params=identity | {"share": share})
    samples = _samples(ctx, asset, questions, documents, share)
    keys = [step.key((part.blob.sha256, sample.blob.sha256))
            for part, sample in zip(documents.named("part-"), samples, strict=True)]  # fmt: skip
    found = ctx.cache.get_many(keys)
    missing = [index for index, parts in enumerate(found) if parts is None]
    if ctx.share:
        missing = ctx.share.order(missing)
    if missing:
        one = Step(name="answer", version=VERSION, params=identity)
        asking = Asking(ctx, asset, questions, endpoint, text, one, schema, check, max_reject_rate)
        asking.spend(sum(parts[0].stats["input_tokens"] for parts in found if parts),
                     sum(parts[0].stats["output_tokens"] for parts in found if parts))  # fmt: skip
        work = [(keys[i], documents.named("part-")[i].rows, samples[i]) for i in missing]
        for index, parts in zip(missing, asking.run(work), strict=True):
            found[index] = parts
    made = renamed((parts[0] for parts in found if parts is not None), "part")
    stats = {"documents": 0, "questions": 0, "answers": 0, "rejects": {}, **add_stats(made)}
    _require(asset, stats, max_reject_rate)
    inputs: dict[str, Manifest | str] = {documents.asset: documents, prompt.asset: prompt}
    whole = manifest(asset, step, inputs, made, stats)
    ctx.refs.save(whole)
    return whole


def _require(asset: str, stats: Mapping[str, Any], max_reject_rate: float) -> None:
    rejected = sum(stats["rejects"].values())
    if rejected > max_reject_rate * max(1, stats["questions"]):
        found = ", ".join(f"{reason} {n}" for reason, n in sorted(stats["rejects"].items(), key=lambda one: -one[1]))
        raise too_many(asset, rejected, stats["questions"], max_reject_rate, found)


def _samples(ctx: Context, asset: str, questions: Questions, documents: Manifest, share: float) -> list[Part]:
    """Return the texts to ask about, one part per part of documents."""
    own = {"share": share, "seed": questions.seed, "max_characters": questions.max_characters}
    step = Step(name="questions", version=VERSION, params=own, libraries=UNICODE)
    items = [
        Item((part.blob.sha256,), _Sample(part, share, questions.seed, questions.max_characters), part.rows)
        for part in documents.named("part-")
    ]
    made = run_items(ctx, step, _draw, items, label=f"{asset} sample", unit="documents")
    return [parts[0] for parts in made]


def _draw(store: Store, task: _Sample) -> tuple[Part, ...]:
    return (write_batches(store, "part.parquet", QUESTION_SCHEMA, _drawn(store, task)),)


def sampled(texts: pa.Array, share: float, seed: int) -> Bools:
    """Return a mask of the texts in a sample, by a keyed hash of the text: copies are sampled alike."""
    from plinth_text.unicode import digests  # kernels are for workers

    if share >= 1:
        return np.ones(len(texts), np.bool_)
    return np.asarray(ranks(digests(texts), seed) < np.uint64(share * 2**64))


def _drawn(store: Store, task: _Sample) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in iter_batches(store, task.documents, ("text",)):
        texts = batch.column("text")
        chosen = np.flatnonzero(sampled(texts, task.share, task.seed))
        some = [text[: task.max_characters] for text in texts.take(pa.array(chosen)).to_pylist()]
        yield pa.record_batch([pa.array(first + chosen), pa.array(some, pa.large_string())], schema=QUESTION_SCHEMA)
        first += batch.num_rows
