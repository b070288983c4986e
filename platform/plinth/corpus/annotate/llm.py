"""Annotator that asks a language model about a sample of the documents, and writes its answers as typed columns.

    llm_edu: {endpoint: local, model: M, prompt: rate_edu, sample: 0.01, columns: {score: {type: integer}}}

Columns come from the recipe, and so does the JSON schema, which is sent with each question and checked for each
answer. A row is null if its document was not sampled, or has no usable answer; `reason` states why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field, StringConstraints, model_validator

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.annotate.base import Annotator
from plinth.corpus.llm import answers
from plinth.corpus.llm.parameters import Endpoint, Questions, endpoint_of
from plinth.records import Frozen, Manifest

REASON = pa.field("reason", pa.string())  # null if the model answered
TYPES = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}
#: Integers that a column can hold.
_INT64 = range(-(2**63), 2**63)


class AnswerColumn(Frozen):
    """Column of the answers, as a JSON schema."""

    type: Literal["integer", "number", "boolean", "string"] = Field(description="Type of the values.")
    enum: tuple[str, ...] = Field((), description="For a string: its possible values; required.")
    minimum: float | None = Field(None, description="For a number: smallest value.")
    maximum: float | None = Field(None, description="For a number: largest value.")
    description: str = Field("", description="Meaning of the column; part of the JSON schema.")

    @model_validator(mode="after")
    def _fits_the_type(self) -> AnswerColumn:
        if bool(self.enum) != (self.type == "string"):
            raise ValueError("a string needs `enum`, and other types have none")
        if self.type not in ("integer", "number") and (self.minimum, self.maximum) != (None, None):
            raise ValueError("only numbers have `minimum` and `maximum`")
        return self

    @property
    def json_schema(self) -> dict[str, Any]:
        """JSON schema of the values."""
        found = self.model_dump(mode="json", exclude_defaults=True)
        return {name: int(value) if name.endswith("imum") and value == int(value) else value
                for name, value in found.items()}  # fmt: skip


ColumnName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


class LlmParams(Questions):
    """Parameters of the annotator `llm`: the questions, the share of documents to ask about, and the columns."""

    columns: Mapping[ColumnName, AnswerColumn] = Field(min_length=1, description="Columns of the answers, by name.")
    sample: float = Field(1.0, gt=0, le=1, description="Share of the documents to ask about, by a hash of their text.")
    max_reject_rate: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Maximum share of questions without a usable answer; above it, the stage fails.",
    )

    @model_validator(mode="after")
    def _leaves_the_reason(self) -> LlmParams:
        if REASON.name in self.columns:
            raise ValueError(f"the column `{REASON.name}` is reserved for the reason of a missing answer")
        return self

    @property
    def schema_of_answers(self) -> dict[str, Any]:
        """JSON schema of an answer."""
        properties = {name: column.json_schema for name, column in self.columns.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }


def columns(params: LlmParams) -> pa.Schema:
    """Return the columns of the sidecar."""
    return pa.schema([*(pa.field(name, TYPES[column.type]) for name, column in params.columns.items()), REASON])


def ask(
    ctx: Context,
    asset: str,
    params: LlmParams,
    documents: Manifest,
    resources: Mapping[str, Manifest],
    endpoints: Mapping[str, Endpoint],
) -> Manifest:
    """Ask about the sample, and return the manifest of the answers, as described in `answers.run`."""
    return answers.run(
        ctx,
        f"{asset}/answers",
        params,
        endpoint_of(endpoints, params.endpoint),
        documents,
        resources[f"lists/{params.prompt}"],
        share=params.sample,
        schema=params.schema_of_answers,
        check=partial(_fault, _validator(params)),
        max_reject_rate=params.max_reject_rate,
    )


def annotate(batch: pa.RecordBatch, params: LlmParams) -> pa.RecordBatch:
    """Return the values in the answers, which were checked when they arrived."""
    schema = columns(params)
    found = [None if text is None else parse(text) for text in batch.column("answers.answer").to_pylist()]
    arrays = [pa.array([None if row is None else _cast(row[field.name], field.type) for row in found], field.type)
              for field in schema if field.name != REASON.name]  # fmt: skip
    return pa.record_batch([*arrays, batch.column("answers.reason")], schema=schema)


def parse(text: str) -> dict[str, Any]:
    """Parse the JSON object in an answer; a code fence around it is allowed.

    Raises:
        ValueError: not one JSON object with unique keys and finite numbers.
    """
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json")
    found = json.loads(text, object_pairs_hook=fingerprint.unique, parse_constant=_refused)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _fault(valid: Callable[[Any], bool], text: str) -> str:
    """Return the reason why an answer cannot be used, or an empty text."""
    try:
        found = parse(text)
    except (ValueError, RecursionError):
        return "not_json"
    return "" if valid(found) and all(map(_storable, found.values())) else "schema"


def _validator(params: LlmParams) -> Callable[[Any], bool]:
    from jsonschema import Draft202012Validator  # takes a tenth of a second to import

    valid: Callable[[Any], bool] = Draft202012Validator(params.schema_of_answers).is_valid
    return valid


def _storable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and (not value.is_integer() or int(value) in _INT64)
    return not isinstance(value, int) or value in _INT64


def _cast(value: Any, kind: pa.DataType) -> Any:
    return int(value) if pa.types.is_integer(kind) else value


def _refused(constant: str) -> Any:
    raise ValueError(constant)


ANNOTATOR = Annotator(
    name="llm",
    version="1",
    description="Answers of a language model about a sample of the documents, as typed columns.",
    source="The prompt in your list. Use several as `llm_NAME`.",
    params=LlmParams,
    schema=pa.schema([REASON]),
    reads=("id",),
    annotate=annotate,
    after=("answers.answer", "answers.reason"),
    resources=lambda params: (f"lists/{params.prompt}",),
    columns=columns,
    asks=ask,
)
