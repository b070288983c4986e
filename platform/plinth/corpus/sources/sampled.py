"""Text that a model writes, as a source: its parameters, and how what was written is read.

The `path` of such a source names the model; the asset `BUCKET/sampled` writes the text, as JSON lines, which are
read here like any others.

Does not belong here: the writing (`plinth.training.sampled_text`).
"""

from __future__ import annotations

from pydantic import Field

from plinth.corpus.sources.jsonl import READER as JSONL
from plinth.corpus.sources.record import Reader
from plinth.records import Frozen

#: `kind` of the source.
KIND = "teacher"
#: Name of the asset with text that a model wrote for a bucket (`BUCKET/sampled`); `documents` reads it as files.
STAGE = "sampled"


class SampledText(Frozen):
    """How much is written, and how tokens are drawn. The text of a document depends on seed and number alone."""

    documents: int = Field(1000, ge=1, description="Documents to write.")
    max_tokens: int = Field(512, ge=1, description="A document that has not ended by then ends there.")
    temperature: float = Field(1.0, ge=0, description="Divides logits; 0: the most probable token.")
    top_p: float = Field(1.0, gt=0, le=1, description="Draw from the fewest tokens that are together so probable.")
    seed: int = Field(1, ge=0, description="Of the draws.")


READER = Reader(
    name=KIND,
    description="Text that a release or a checkpoint of this workspace writes; `path` names it.",
    read=JSONL.read,
    params=SampledText,
)
