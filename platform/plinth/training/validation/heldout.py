"""Held-out text that a run evaluates during training. It is selected and tokenized once, when the run is prepared.

Documents are chosen as in the final evaluation (`evaluation.slices.choice`): by smallest id, up to a number of bytes. A
run stores the digest of the tokenized text, and ranks read the text from the store. The held-out text is not part of
the run's identity.

Does not belong here: evaluation by the model (validation), so this module needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compute.context import Context, cached, manifest
from plinth.errors import RecipeError, StageError, TrainingError
from plinth.evaluation.slices.choice import Document, choose_documents
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth.tokens.tokenizer import encode, tokenizer
from plinth.training.parameters.run import Validation

ASSET = "run/heldout"
VERSION = "1"
PART = "heldout.parquet"

SCHEMA = pa.schema(
    [
        pa.field("slice", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),  # bytes of the tokenized text
        pa.field("tokens", pa.list_(pa.uint32()), nullable=False),
    ]
)


@dataclass(frozen=True)
class HeldoutSlice:
    """Held-out documents of one bucket.

    Attributes:
        bytes: UTF-8 bytes of all documents, the denominator of bits per byte.
        streams: for each document, the end-of-text token followed by the document's tokens.
    """

    name: str
    bytes: int
    streams: tuple[npt.NDArray[np.int64], ...]


def prepare(ctx: Context, params: Validation, curated: Mapping[str, Manifest], trained: Manifest) -> Manifest:
    """Select and tokenize the held-out text, or return an earlier result for the same text.

    Args:
        ctx: the run context, with workspace and store.
        params: the slices, and the amount of text of each slice.
        curated: manifest of asset `curated` for each bucket.
        trained: manifest of asset `tokenizer`.

    Stats: `slices` (name -> documents, bytes, tokens), `without_text` (buckets without held-out text), `end_of_text`.

    Raises:
        RecipeError: a slice is not a bucket of the recipe.
        StageError: a named slice, or every slice, has no held-out text.
        TrainingError: the tokenizer is lossy.
    """
    unknown = sorted(set(params.slices) - set(curated))
    if unknown:
        raise RecipeError(
            "training.validation.slices names buckets that do not exist",
            found=", ".join(unknown),
            expected=f"of {', '.join(sorted(curated))}",
        )
    wanted = {name: curated[name] for name in sorted(params.slices or curated)}
    step = Step(name="run.heldout", version=VERSION, params={"bytes_per_slice": params.bytes_per_slice})
    named = {f"{name}/curated": made for name, made in wanted.items()}
    read = (*(one for pair in named.items() for one in pair), trained)
    parts = cached(ctx, step, read, lambda: [_tokenised(ctx, params, wanted, trained)])
    stats = _stats(read_table(ctx.store, parts[0]), list(wanted))
    stats |= {"end_of_text": trained.stats["end_of_text"]}
    made = manifest(ASSET, step, {**named, "tokenizer": trained}, parts, stats)
    ctx.refs.save(made)
    return made


def load(store: Store, made: Manifest) -> list[HeldoutSlice]:
    """Return the held-out slices in a manifest that `prepare` returned, by name.

    Raises:
        MissingError, IntegrityError: the text is missing from the store, or has changed.
    """
    (part,) = made.named(PART)
    table, first = read_table(store, part), [made.stats["end_of_text"]]
    found: dict[str, tuple[int, list[npt.NDArray[np.int64]]]] = {}
    for name, size, ids in zip(*(table.column(column).to_pylist() for column in SCHEMA.names), strict=True):
        before, streams = found.get(name, (0, []))
        found[name] = before + size, [*streams, np.array(first + ids, dtype=np.int64)]
    return [HeldoutSlice(name, size, tuple(streams)) for name, (size, streams) in sorted(found.items())]


def _tokenised(ctx: Context, params: Validation, wanted: Mapping[str, Manifest], trained: Manifest) -> Part:
    documents = [each for name in wanted for each in _chosen(ctx.store, name, wanted[name], params)]
    if not documents:
        raise StageError(
            "no bucket has held-out text to validate on",
            found=f"buckets {', '.join(wanted)}",
            expected="at least one document",
            remedy="raise corpus.holdout.fraction, or remove training.validation",
        )
    (file,) = trained.named(tokenizer.FILE)
    ids = list(_encoded(encode.load(ctx.store, file.blob), documents))
    columns = [[each.bucket for each in documents], [len(each.data) for each in documents], ids]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return write_table(ctx.store, PART, pa.Table.from_arrays(arrays, schema=SCHEMA))


def _chosen(store: Store, name: str, curated: Manifest, params: Validation) -> list[Document]:
    """Return the held-out documents of a bucket. If there are none, return an empty list unless the recipe names
    slices."""
    try:
        return choose_documents(store, {name: curated}, params.bytes_per_slice)
    except StageError:
        if params.slices:
            raise
        return []


def _encoded(model: Any, documents: Sequence[Document]) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    texts = [each.text for each in documents]
    for text, ids in zip(texts, encode.encode_texts(model, texts, "<u4"), strict=True):
        if model.decode(ids.tolist(), skip_special_tokens=False) != text:
            raise TrainingError(
                "the tokenizer is lossy on held-out text, so bits per byte would omit text",
                found=f"a document that begins {text[:40]!r}",
                expected="the same text after encoding and decoding",
                remedy="use a tokenizer without normalization, or remove training.validation",
            )
        yield ids


def _stats(table: pa.Table, wanted: list[str]) -> dict[str, Any]:
    slices: dict[str, dict[str, int]] = {}
    for name, size, ids in zip(*(table.column(column).to_pylist() for column in SCHEMA.names), strict=True):
        of = slices.setdefault(name, {"documents": 0, "bytes": 0, "tokens": 0})
        of["documents"], of["bytes"], of["tokens"] = of["documents"] + 1, of["bytes"] + size, of["tokens"] + len(ids)
    return {"slices": slices, "without_text": [name for name in wanted if name not in slices]}
