"""The licence gate's column: a document's SPDX expression against the permitted list.

SPDX 2.3, annex D: `AND` needs both, `OR` lets the user choose, `WITH` adds an exception to a licence and
is permitted when the licence is. What cannot be read is not permitted; `unknown` never is.
"""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.records import Frozen

SCHEMA = pa.schema(
    [pa.field("expression", pa.string(), nullable=False), pa.field("permitted", pa.bool_(), nullable=False)]
)
UNKNOWN = "unknown"
TOKEN = re.compile(r"\(|\)|[A-Za-z0-9.+:-]+")
MAX_TOKENS = 200


class Params(Frozen):
    """What may reach a shard."""

    permitted: tuple[str, ...] = Field((), description="SPDX identifiers, and `LICENCE WITH EXCEPTION` pairs.")


def annotate(batch: pa.RecordBatch, params: Params) -> pa.RecordBatch:
    """The expression in one spelling, and whether the list permits it."""
    judged = [judge(text, params.permitted) for text in batch.column("licence").to_pylist()]
    expressions = pa.array([expression for expression, _ in judged], pa.string())
    return pa.record_batch([expressions, pa.array([ok for _, ok in judged], pa.bool_())], schema=SCHEMA)


@lru_cache(maxsize=4096)
def judge(expression: str, permitted: tuple[str, ...]) -> tuple[str, bool]:
    """Normal form of an SPDX expression, and whether it is permitted; (`unknown`, False) when it cannot be read."""
    tokens = TOKEN.findall(expression)
    if not tokens or len(tokens) > MAX_TOKENS or "".join(tokens) != "".join(expression.split()):
        return UNKNOWN, False
    try:
        reader = _Reader(tokens, {name.lower(): name for name in permitted})
        form, allowed = reader.either()
        reader.end()
    except ValueError:
        return UNKNOWN, False
    return (UNKNOWN, False) if form.lower() == UNKNOWN else (form, allowed)


class _Reader:
    """Recursive descent over `OR` < `AND` < `WITH` < parentheses."""

    def __init__(self, tokens: list[str], permitted: dict[str, str]) -> None:
        self.tokens, self.permitted, self.at = tokens, permitted, 0

    def either(self) -> tuple[str, bool]:
        form, allowed = self.both()
        while self._take("OR"):
            other, also = self.both()
            form, allowed = f"{form} OR {other}", allowed or also
        return form, allowed

    def both(self) -> tuple[str, bool]:
        form, allowed = self.one()
        while self._take("AND"):
            other, also = self.one()
            form, allowed = f"{form} AND {other}", allowed and also
        return form, allowed

    def one(self) -> tuple[str, bool]:
        if self._take("("):
            form, allowed = self.either()
            if not self._take(")"):
                raise ValueError("a parenthesis is not closed")
            return f"({form})", allowed
        name = self._name()
        if not self._take("WITH"):
            return self.permitted.get(name.lower(), name), name.lower() in self.permitted
        pair = f"{name} WITH {self._name()}"
        return pair, name.lower() in self.permitted or pair.lower() in self.permitted

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise ValueError("words are left over")

    def _take(self, word: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at].upper() == word:
            self.at += 1
            return True
        return False

    def _name(self) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at].upper() in {"AND", "OR", "WITH", "(", ")"}:
            raise ValueError("a licence is missing")
        self.at += 1
        return self.tokens[self.at - 1]


ANNOTATOR = Annotator(
    name="licence",
    version="1",
    description="The document's licence in SPDX form, and whether the recipe permits it.",
    source="SPDX specification 2.3, annex D.",
    params=Params,
    schema=SCHEMA,
    reads=("licence",),
    annotate=annotate,
)
