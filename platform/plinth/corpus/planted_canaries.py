"""Stage that writes the canaries that are included in the run, as the curated text of the bucket `canaries`.

    canaries + random inclusion -> copies in keyed order, of equal length -> `part-00000.parquet`, like curated text
    canaries, references                                                  -> `canaries.parquet`

Later stages treat the copies like any other text: the copies are tokenized, sharded, packed, mixed and ordered. The
copies are added after curation. Therefore no filter or deduplication removes them, and funnel, data card, text export
and D_eff do not count them.

All documents have the same number of tokens, which divides every row length. Therefore no row boundary cuts a document.
The first token of a stream is not a target. Therefore a concatenated stream starts with a filler document that has one
more token. Other filler documents complete the last sequence, because an incomplete sequence would be dropped. Fillers
are not canaries.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from plinth.compute.context import Context, cached, manifest
from plinth.corpus import canaries
from plinth.corpus.canaries import BUCKET, LONGEST, SHORTEST, Canaries, Canary, Lexis, document_tokens
from plinth.corpus.documents.documents import document_id
from plinth.errors import RecipeError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, read_table, write_table
from plinth.storage.store import Store

ASSET = f"{BUCKET}/curated"
VERSION = "1"
TABLE = "canaries.parquet"

#: Canaries by number, then references; of a reference `number` counts references and `repetitions` is 0.
SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # canary, reference
        pa.field("number", pa.int32(), nullable=False),
        pa.field("repetitions", pa.int32(), nullable=False),
        pa.field("planted", pa.bool_(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)

#: The number of a document that is a filler.
FILLER = -1


def run(
    ctx: Context,
    params: Canaries,
    tokenizer: Manifest,
    lexis: Lexis,
    *,
    sequence_tokens: int,
    row_tokens: Sequence[int] = (),
    concatenated: bool,
) -> Manifest:
    """Generate canaries and references, and write the copies of the included canaries.

    Args:
        tokenizer: tokenizer of the run, which determines the length of texts in tokens.
        lexis: token counts and single-token words of this tokenizer.
        sequence_tokens: number of tokens per training sequence.
        row_tokens: lengths in tokens of the rows into which sequences are cut.
        concatenated: True if documents are concatenated to fill sequences; False for best-fit packing.

    Stats: `documents` and `text_bytes` (of all copies and fillers), `canaries`, `planted`, `copies`, `fillers`,
    `references`, `repetitions`, `document_tokens`, `seed`.

    Raises:
        RecipeError: no suitable document length divides the row lengths.
        StageError: no generated text has the required number of tokens.
    """
    size = document_tokens(math.gcd(sequence_tokens, *row_tokens))
    if size is None:
        raise RecipeError(
            "corpus.canaries: no canary length divides all sequence lengths",
            found=f"rows of {', '.join(map(str, (sequence_tokens, *row_tokens)))} tokens",
            expected=f"lengths with a common divisor from {SHORTEST} to {LONGEST}",
        )
    places = {"document_tokens": size, "sequence_tokens": sequence_tokens, "concatenated": concatenated}
    facts = params.model_dump(mode="json") | places
    step = Step(name="canaries", version=VERSION, params=facts)

    def made() -> list[Part]:
        own = canaries.canaries(params, size - 1, lexis)
        lead = canaries.texts([f"filler {params.seed} first"] if concatenated else [], size, lexis)
        missing = -(copies_of(own) + len(lead)) % (sequence_tokens // size)
        rest = canaries.texts([f"filler {params.seed} {number}" for number in range(missing)], size - 1, lexis)
        documents = _documents(params, own, lead, rest)
        references = canaries.references(params, size - 1, lexis)
        return [_write(ctx.store, documents), _write_table(ctx.store, own, references)]

    parts = cached(ctx, step, [tokenizer], made)
    stats = {**parts[0].stats, **parts[1].stats, "document_tokens": size, "seed": params.seed}
    stats["repetitions"] = list(params.repetitions)
    return manifest(ASSET, step, {"tokenizer": tokenizer}, parts, stats)


def table(store: Store, made: Manifest) -> pa.Table:
    """Return the table of canaries and references, with the columns of `SCHEMA`."""
    (part,) = made.named(TABLE)
    return read_table(store, part)


def planted_documents(store: Store, made: Manifest) -> list[tuple[int, int]]:
    """Return the canary number and the copy number of every written document, in stream order. A filler has the canary
    number `FILLER`."""
    (part,) = made.named("part-")
    extras = map(json.loads, read_table(store, part, ["extra"])["extra"].to_pylist())
    return [(int(extra["canary"]), int(extra["copy"])) for extra in extras]


def copies_of(made: Sequence[Canary]) -> int:
    """Return the total number of copies of all included canaries."""
    return sum(each.repetitions for each in made if each.planted)


def _documents(params: Canaries, made: Sequence[Canary], lead: Sequence[str], rest: Sequence[str]) -> pa.Table:
    """Return the copies of included canaries in an order determined by a hash. The fillers in `lead` come before the
    copies, and the fillers in `rest` after them."""
    copies = [(each, copy) for each in made if each.planted for copy in range(each.repetitions)]
    copies.sort(key=lambda one: hashlib.sha256(f"order {params.seed} {one[0].number} {one[1]}".encode()).digest())
    rows = [_row(FILLER, copy, 0, text) for copy, text in enumerate(lead)]
    rows += [_row(each.number, copy, each.repetitions, each.text) for each, copy in copies]
    rows += [_row(FILLER, copy, 0, text) for copy, text in enumerate(rest, len(lead))]
    return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)


def _row(number: int, copy: int, repetitions: int, text: str) -> dict[str, Any]:
    uri = f"canary://{'filler' if number == FILLER else number}/{copy}"
    extra = {"domain": BUCKET, "canary": number, "copy": copy, "repetitions": repetitions}
    return {
        "id": document_id(BUCKET, uri, text.encode()),
        "text": text,
        "uri": uri,
        "captured_at": None,
        "snapshot": BUCKET,
        "licence": "CC0-1.0",
        "mime": "text/plain",
        "source_bytes": len(text.encode()),
        "extra": json.dumps(extra, sort_keys=True),
    }


def _write(store: Store, documents: pa.Table) -> Part:
    fillers = sum("filler" in uri for uri in documents["uri"].to_pylist())
    size = sum(documents["source_bytes"].to_pylist())
    stats = {"documents": documents.num_rows, "text_bytes": size, "copies": documents.num_rows - fillers}
    return write_table(store, "part-00000.parquet", documents, stats=stats | {"fillers": fillers})


def _write_table(store: Store, made: Sequence[Canary], references: Sequence[str]) -> Part:
    rows: list[dict[str, Any]] = [{"kind": "canary", **each._asdict()} for each in made]
    rows += [
        {"kind": "reference", "number": number, "repetitions": 0, "planted": False, "text": text}
        for number, text in enumerate(references)
    ]
    stats = {"canaries": len(made), "planted": sum(each.planted for each in made), "references": len(references)}
    return write_table(store, TABLE, pa.Table.from_pylist(rows, schema=SCHEMA), stats=stats)
