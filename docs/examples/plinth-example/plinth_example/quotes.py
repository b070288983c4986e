"""Quoted lines and signatures of mail: text by other authors, and text without content."""

from __future__ import annotations

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.records import Frozen

SCHEMA = pa.schema(
    [pa.field("quoted_lines", pa.float64(), nullable=False), pa.field("signature", pa.bool_(), nullable=False)]
)

#: RFC 3676, section 4.3: two hyphens and a space, alone on a line. Archives often lose the space.
SIGNATURE = ("--", "-- ")


class Params(Frozen):
    """Prefixes of quoted lines."""

    markers: tuple[str, ...] = Field((">", "|"), min_length=1, description="A line that begins so is a quoted one.")


def annotate(batch: pa.RecordBatch, params: Params) -> pa.RecordBatch:
    """Quoted lines / lines that are not blank (0 where all are), and whether a signature begins anywhere."""
    texts = [text.split("\n") for text in batch.column("text").to_pylist()]
    shares = [_share(lines, params.markers) for lines in texts]
    signed = [any(line in SIGNATURE for line in lines) for lines in texts]
    return pa.record_batch([pa.array(shares, pa.float64()), pa.array(signed, pa.bool_())], schema=SCHEMA)


def _share(lines: list[str], markers: tuple[str, ...]) -> float:
    written = [line for line in lines if line.strip()]
    return sum(line.lstrip().startswith(markers) for line in written) / len(written) if written else 0.0


ANNOTATOR = Annotator(
    name="quotes",
    version="1",
    description="Share of quoted lines, and whether there is a signature.",
    source="RFC 3676, sections 4.3 and 4.5.",
    params=Params,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
