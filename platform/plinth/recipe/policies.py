"""Policies: from annotation columns to verdicts and edits."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Rule(Frozen):
    """Drop a document when an expression over annotation columns is true.

    Expressions compare columns (`gopher_quality.word_count < 50`) with `and`, `or`, `not`, `in`.
    """

    reason: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Kept with the document.")
    drop: str = Field(description="Expression over annotation columns.")


class EditRule(Frozen):
    """Turn spans found by an annotator into edits of the text."""

    reason: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Name of the edit.")
    spans: str = Field(description="Span column, such as `pii.spans`.")


class Policy(Frozen):
    """Columns to verdicts. The first rule that drops a document is its reason; all that fire are counted."""

    rules: tuple[Rule, ...] = Field((), description="What drops a document, in order.")
    edits: tuple[EditRule, ...] = Field((), description="What is replaced in the text of a kept document.")
