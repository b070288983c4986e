"""Annotator that labels every document with a student of a language model (`corpus.models`, `kind: student`)."""

from __future__ import annotations

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.annotate.learned import staged
from plinth.corpus.models import artefact, classifier
from plinth.records import Frozen, Name

SCHEMA = pa.schema([pa.field("score", pa.float64(), nullable=False)])


class StudentAnnotatorParams(Frozen):
    """Parameters of the annotator `student`: the model."""

    model: Name = Field("student", description="Name of a model of kind `student` in `corpus.models`.")


def prepare(params: StudentAnnotatorParams, files: Files) -> artefact.ClassifierModel:
    """Load the model from its files.

    Raises:
        IntegrityError: the version or kind of the files differs, or the files are damaged.
    """
    key = f"models/{params.model}"
    return artefact.read(files[key], key, classifier.CLASSIFIER_KIND)


def annotate(batch: pa.RecordBatch, model: artefact.ClassifierModel) -> pa.RecordBatch:
    """Annotate each text with the calibrated probability that the language model would give the positive label."""
    return pa.record_batch([pa.array(staged(model, batch.column("text"), None)[2])], schema=SCHEMA)


ANNOTATOR = Annotator(
    name="student",
    version="1",
    description="Probability that a language model would give a document the positive label, by its student.",
    source="Your model of kind `student`. Use several as `student_NAME`.",
    params=StudentAnnotatorParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=lambda params: (f"models/{params.model}",),
    prepare=prepare,
)
