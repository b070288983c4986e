"""Verdicts as columns: values computed for all rows at once equal those of plain Python for each row."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.corpus.policy import policy
from plinth.corpus.policy.compiled_policy import CompiledPolicy, compile_policy
from plinth.corpus.policy.parameters import EditRule, Policy, Rule
from plinth.storage.parts import EDIT_TYPE

RULES = (
    ("few", "gopher_quality.word_count < 5"),
    ("short", "gopher_quality.mean_word_characters < 3"),
    ("both", "gopher_quality.word_count < 7 and gopher_quality.mean_word_characters < 6"),
)


def spans() -> st.SearchStrategy[list[dict[str, Any]]]:
    def span(start: int, size: int, kind: str) -> dict[str, Any]:
        return {"start_cp": start, "end_cp": start + size, "replacement": f"<{kind}>", "reason": kind}

    return st.lists(st.builds(span, st.integers(0, 30), st.integers(1, 8), st.sampled_from(["a", "b"])), max_size=4)


def compiled(rules: int, edits: bool) -> CompiledPolicy:
    given_edits = (EditRule(reason="pii", spans="pii.spans"), EditRule(reason="other", spans="language.foreign"))
    chosen = Policy(
        rules=tuple(Rule(reason=reason, drop=drop) for reason, drop in RULES[:rules]),
        edits=given_edits if edits else (),
    )
    return compile_policy(chosen, ("gopher_quality", "pii", "language"), "policy")


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 9), st.one_of(st.none(), spans()), spans()), max_size=12),
    st.integers(0, 3),
    st.booleans(),
)
def test_columns_are_those_of_plain_python(
    rows: list[tuple[int, float, list[dict[str, Any]] | None, list[dict[str, Any]]]], rules: int, edits: bool
) -> None:
    columns = {
        "gopher_quality.word_count": pa.array([row[0] for row in rows], pa.int32()),
        "gopher_quality.mean_word_characters": pa.array([row[1] for row in rows], pa.float64()),
        "pii.spans": pa.array([row[2] for row in rows], EDIT_TYPE),
        "language.foreign": pa.array([row[3] for row in rows], EDIT_TYPE),
        "documents.source_bytes": pa.array(np.arange(len(rows))),
    }
    stats = policy._no_counts()
    made = policy._judged(compiled(rules, edits), columns, len(rows), stats).to_pylist()
    expected, counted = [], {}
    for words, length, first, second in rows:
        fired = [
            name
            for (name, _), one in zip(RULES, (words < 5, length < 3, words < 7 and length < 6), strict=True)
            if one and name in [reason for reason, _ in RULES[:rules]]
        ]
        both = [{**span, "reason": "pii"} for span in first or []] + [{**span, "reason": "other"} for span in second]
        mine = policy.merged(both) if edits else []
        expected.append({"keep": not fired, "reason": fired[0] if fired else None, "fired": fired, "edits": mine})
        for edit in mine if not fired else []:
            counted[edit["reason"]] = counted.get(edit["reason"], 0) + 1
    assert made == expected
    assert stats["edits"] == counted
    assert stats["kept"] == sum(row["keep"] for row in expected)
    assert stats["kept_bytes"] == sum(i for i, row in enumerate(expected) if row["keep"])
    assert stats["fired"] == {name: n for name, _ in RULES if (n := sum(name in row["fired"] for row in expected))}
