"""Rights of a document: check of its SPDX expression against the permitted list, and opt-outs declared by its page or
server.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.sources.times import DIRECTIVES, REL_LICENSE, TDM, TDM_POLICY
from plinth.extensions import NoParams
from plinth.records import Frozen, internal

# Columns of the license gate: check of a document's SPDX expression against the permitted list.
#
# In SPDX 2.3, annex D, `AND` requires both licenses, `OR` lets the user choose, `WITH` adds an exception to a license,
# and `+` means this version or a later one. A `WITH` expression is permitted if its license is permitted or if the pair
# is listed. Invalid expressions are not permitted. `unknown`, `NONE` and `NOASSERTION` are never permitted, even if
# listed.
#
# A license that permits training does not always permit redistribution or commercial use. So each use has its own list,
# and `permitted` requires the lists of all uses in the recipe.

LICENCE_SCHEMA = pa.schema(
    [
        pa.field("expression", pa.string(), nullable=False),
        pa.field("permitted", pa.bool_(), nullable=False),  # for training and all uses in the recipe
        pa.field("redistribute", pa.bool_(), nullable=False),
        pa.field("commercial", pa.bool_(), nullable=False),
    ]
)
UNKNOWN = "unknown"
NEVER = frozenset({UNKNOWN, "none", "noassertion"})
OPERATORS = frozenset({"AND", "OR", "WITH", "(", ")"})
TOKEN = re.compile(r"[()]|[A-Za-z0-9.+:-]+")
MAX_TOKENS = 100  # also bounds the depth of parentheses


class LicenceParams(Frozen):
    """Licenses of documents that may become training data."""

    permitted: tuple[str, ...] = internal(
        (), description="Permitted SPDX identifiers, and `LICENCE WITH EXCEPTION` pairs."
    )
    redistribute: tuple[str, ...] | None = internal(
        None, description="Licenses that allow redistribution; if null, all permitted licenses allow it."
    )
    commercial: tuple[str, ...] | None = internal(
        None, description="Licenses that allow commercial use; if null, all permitted licenses allow it."
    )
    uses: tuple[Literal["redistribute", "commercial"], ...] = internal(
        (), description="Uses that the license of a document must allow in addition to training."
    )


class _Term(NamedTuple):
    """Part of a license expression: its operands in normal form, its operator, and whether the recipe permits it."""

    operands: tuple[str, ...]
    allowed: bool
    operator: str = ""

    @property
    def form(self) -> str:
        return f" {self.operator} ".join(self.operands)


def annotate_licence(batch: pa.RecordBatch, params: LicenceParams) -> pa.RecordBatch:
    """Annotate each document with its license expression in normal form, whether the expression is permitted, and the
    uses that it permits."""
    distinct = batch.column("licence").dictionary_encode()
    rows = [_row(text, params) for text in distinct.dictionary.to_pylist()]
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(LICENCE_SCHEMA)]
    return pa.record_batch([column.take(distinct.indices) for column in columns], schema=LICENCE_SCHEMA)


def _row(text: str, params: LicenceParams) -> tuple[str, bool, bool, bool]:
    """Check one license expression against every list. A use without a list is allowed by every license that is
    permitted for training."""
    expression, trained = judge(text, params.permitted)
    allowed = {use: trained and (own is None or judge(text, own)[1]) for use, own in _lists(params).items()}
    wanted = all(allowed[use] for use in params.uses)
    return expression, trained and wanted, allowed["redistribute"], allowed["commercial"]


def is_permitted(licence: str, params: LicenceParams) -> bool:
    """Return True if a license is permitted for training and every required use."""
    return _row(licence, params)[1]


def _lists(params: LicenceParams) -> dict[str, tuple[str, ...] | None]:
    return {"redistribute": params.redistribute, "commercial": params.commercial}


@lru_cache(maxsize=4096)
def judge(expression: str, permitted: tuple[str, ...]) -> tuple[str, bool]:
    """Return the normal form of an SPDX expression, and True if it is permitted. For an invalid expression,
    return (`unknown`, False).

    Normal form: operators in capitals, single spaces, no redundant parentheses, no repeated operands, and identifiers
    spelled as in the permitted list.
    """
    tokens = TOKEN.findall(expression)
    if not tokens or len(tokens) > MAX_TOKENS or "".join(tokens) != "".join(expression.split()):
        return UNKNOWN, False
    listed = {" ".join(name.split()).lower(): " ".join(name.split()) for name in permitted}
    try:
        reader = _Reader(tokens, {key: name for key, name in listed.items() if key not in NEVER})
        term = reader.either()
        reader.end()
    except ValueError:
        return UNKNOWN, False
    return (UNKNOWN, False) if term.form.lower() in NEVER else (term.form, term.allowed)


class _Reader:
    """Recursive-descent parser of license expressions. `OR` has the lowest precedence, followed by `AND`, `WITH` and
    parentheses."""

    def __init__(self, tokens: list[str], permitted: dict[str, str]) -> None:
        self.tokens, self.permitted, self.at = tokens, permitted, 0

    def either(self) -> _Term:
        terms = [self.both()]
        while self._take("OR"):
            terms.append(self.both())
        return _joined("OR", terms, any(term.allowed for term in terms))

    def both(self) -> _Term:
        terms = [self.one()]
        while self._take("AND"):
            terms.append(self.one())
        return _joined("AND", terms, all(term.allowed for term in terms))

    def one(self) -> _Term:
        if self._take("("):
            term = self.either()
            if not self._take(")"):
                raise ValueError("a parenthesis is not closed")
            return term
        name = self._name()
        form, allowed = self._look_up(name)
        if not self._take("WITH"):
            return _Term((form,), allowed)
        pair, listed = self._look_up(f"{name} WITH {self._name()}")
        return _Term((pair if listed else f"{form}{pair[len(name) :]}",), allowed or listed)

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise ValueError("unexpected words at the end")

    def _look_up(self, name: str) -> tuple[str, bool]:
        """Return the license name as spelled in the permitted list, and True if the list has the name with or without
        its `+`."""
        base = name.removesuffix("+")
        if name.lower() not in self.permitted and base.lower() in self.permitted:
            return self.permitted[base.lower()] + name[len(base) :], True
        return self.permitted.get(name.lower(), name), name.lower() in self.permitted

    def _take(self, word: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at].upper() == word:
            self.at += 1
            return True
        return False

    def _name(self) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at].upper() in OPERATORS:
            raise ValueError("a license is missing")
        self.at += 1
        return self.tokens[self.at - 1]


def _joined(operator: str, terms: list[_Term], allowed: bool) -> _Term:
    """Join parts of a license expression with an operator. An `OR` inside `AND` keeps its parentheses, and a repeated
    operand is written once."""
    operands: dict[str, None] = {}
    for term in terms:
        inside = (f"({term.form})",) if (operator, term.operator) == ("AND", "OR") else (term.form,)
        operands |= dict.fromkeys(term.operands if term.operator == operator else inside)
    if len(operands) == 1:
        return terms[0]
    return _Term(tuple(operands), allowed, operator)


LICENCE = Annotator(
    name="licence",
    version="3",
    description="License of the document as an SPDX expression, and whether the recipe permits it, by use.",
    source="SPDX specification 2.3, annex D.",
    params=LicenceParams,
    schema=LICENCE_SCHEMA,
    reads=("licence",),
    annotate=annotate_licence,
)

#: Directive of a document, by column.
WORDS = {
    "tdm_reservation": TDM,
    "noai": "noai",
    "noimageai": "noimageai",
    "noarchive": "noarchive",
    "noindex": "noindex",
}
#: Key in a document's metadata, by column.
ADDRESSES = {"tdm_policy": TDM_POLICY, "licence_address": REL_LICENSE}
OPT_OUT_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.bool_(), nullable=False) for name in WORDS),
        *(pa.field(name, pa.string()) for name in ADDRESSES),  # null if not declared
    ]
)
_KEYS = "|".join(f'"{key}"' for key in (DIRECTIVES, *ADDRESSES.values()))


def annotate_opt_out(batch: pa.RecordBatch, params: NoParams) -> pa.RecordBatch:
    """Annotate each document with the opt-outs that its metadata declares. Metadata without any opt-out key is not
    parsed."""
    extra = batch.column("extra")
    rows = np.flatnonzero(pc.match_substring_regex(extra, _KEYS).to_numpy(zero_copy_only=False))
    flags = {name: np.zeros(len(extra), dtype=np.bool_) for name in WORDS}
    texts: dict[str, list[str | None]] = {name: [None] * len(extra) for name in ADDRESSES}
    for row, text in zip(rows.tolist(), extra.take(pa.array(rows)).to_pylist(), strict=True):
        found = json.loads(text)
        words = str(found.get(DIRECTIVES, "")).split()
        for name, word in WORDS.items():
            flags[name][row] = word in words
        for name, key in ADDRESSES.items():
            texts[name][row] = found[key] if isinstance(found.get(key), str) else None
    columns = [*map(pa.array, flags.values()), *(pa.array(values, pa.string()) for values in texts.values())]
    return pa.record_batch(columns, schema=OPT_OUT_SCHEMA)


OPT_OUT = Annotator(
    name="opt_out",
    version="1",
    description="Opt-outs and license declared by the page or its server: TDM reservation, robots directives.",
    source="TDM Reservation Protocol (W3C community group, 2024); robots meta tag and X-Robots-Tag.",
    params=NoParams,
    schema=OPT_OUT_SCHEMA,
    reads=("extra",),
    annotate=annotate_opt_out,
)
