import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import pyarrow as pa
import pytest

from plinth.corpus.policy.expressions import MAX_CHARACTERS, parse
from plinth.errors import RecipeError
from plinth.storage.parts import EDIT_TYPE

SCHEMA = {
    "a.words": pa.int32(),
    "a.share": pa.float64(),
    "a.bytes": pa.int64(),
    "b.label": pa.string(),
    "b.ok": pa.bool_(),
    "b.when": pa.timestamp("us", tz="UTC"),
    "b.spans": EDIT_TYPE,
}
ROWS: dict[str, list[Any]] = {
    "a.words": [0, 49, 50, None],
    "a.share": [0.0, 0.3, 0.5, 1.0],
    "a.bytes": [0, 2**62, 7, 8],
    "b.label": ["en", "de", None, "fr"],
    "b.ok": [True, False, None, True],
    "b.when": [None, 1, 2, 3],
}
COLUMNS = {name: pa.array(values, SCHEMA[name]) for name, values in ROWS.items()}


def evaluate(text: str) -> list[bool]:
    found = parse(text, SCHEMA, "rule").evaluate(COLUMNS, 4)
    return [bool(one) for one in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.words < 50", [True, True, False, False]),
        ("not a.words < 50", [False, False, True, True]),  # missing is not below, so `not` holds
        ("a.share > 0.3", [False, False, True, True]),  # 0.3 is not above 0.3
        ("0.3 <= a.share <= 0.5", [False, True, True, False]),
        ("a.words == 49 or b.label == 'fr'", [False, True, False, True]),
        ("a.words < 50 and not b.ok", [False, True, False, False]),
        ("a.words < 1 or a.words > 49 and a.share > 0.9", [True, False, False, False]),
        ("(a.words < 1 or a.words > 49) and a.share > 0.4", [False, False, True, False]),
        ('b.label in ["en", "fr"]', [True, False, False, True]),
        ('b.label not in ("en", "fr")', [False, True, True, False]),
        ("a.words in [-1, 49]", [False, True, False, False]),
        ("b.label is None", [False, False, True, False]),
        ("a.words is not None", [True, True, True, False]),
        ("b.ok is False", [False, True, False, False]),
        ("b.ok is not True", [False, True, True, False]),
        ("b.ok == True", [True, False, False, True]),
        ("b.ok", [True, False, False, True]),
        ("b.when is None", [True, False, False, False]),
        ("a.words * 2 - 1 > 90 + 1.5", [False, True, True, False]),
        ("-a.words <= -50", [False, False, True, False]),
        ("a.share / a.words > 0.01", [False, False, False, False]),  # 0 / 0 compares with nothing
        ("a.bytes / a.share > 1e300", [False, False, False, False]),
        ("1 / a.share > 1e300", [True, False, False, False]),  # infinity
        ("a.bytes * 4 > 0", [False, True, True, True]),  # no overflow
        ("a.share < a.words", [False, True, True, False]),
        ("a.bytes < 9223372036854775807", [True, True, True, True]),  # the largest of 64 bits
        ("a.words < 1".ljust(MAX_CHARACTERS), [True, False, False, False]),
    ],
)
def test_values(text: str, expected: list[bool]) -> None:
    assert evaluate(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("a.words <", "cannot be read"),
        ("a.words < 5\x00", "cannot be read"),
        ("(" * 900 + "a.words" + ")" * 900, "cannot be read"),
        ("a.words < 1" + " or a.words < 1" * MAX_CHARACTERS, "too long"),
        ("a.wrds < 5", "did you mean 'a.words'?"),
        ("words < 5", "Name is not part"),
        ("a.b.c < 5", "Attribute is not part"),
        ("__import__('os').system('true')", "Call is not part"),
        ("a.words.__class__ is None", "Attribute is not part"),
        ("a.words if b.ok else a.share", "IfExp is not part"),
        ("[a.words for x in b.label]", "ListComp is not part"),
        ("a.words ** 999 > 1", "BinOp is not part"),
        ("a.words > 1e999", "Constant is not part"),
        ("a.words > 99999999999999999999", "Constant is not part"),
        ("a.bytes > 9223372036854775808", "Constant is not part"),  # 2^63
        ("a.words < 1".ljust(MAX_CHARACTERS + 1), "too long"),
        ("a.words == None", "comparison with None"),
        ("a.words is 3", "`is` needs None"),
        ("b.label in 'english'", "`in` needs a list"),
        ("b.label in [b.label]", "`in` needs a list"),
        ("b.label in [None]", "`in` needs a list"),
        ("a.words < 3 in [1]", "cannot be chained"),
        ("(a.words, a.share)", "Tuple is not part"),
        ("a.words", "is not a condition"),
        ("a.words + 1", "is not a condition"),
        ("b.spans is None and b.spans", "types do not match"),
        ("b.label > 3", "types do not match"),
        ("b.label in [3]", "types do not match"),
        ("b.ok + 1 > 2", "types do not match"),
        ("a.words and b.ok", "types do not match"),
        ("not a.words", "types do not match"),
        ("True", "has no column"),
        ("1 < 2", "has no column"),
    ],
)
def test_what_is_not_the_language_is_refused(text: str, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(text, SCHEMA, "rule")
    assert says in str(caught.value)
    assert caught.value.what.startswith("rule")


def test_columns_read() -> None:
    assert parse("a.words < 3 or b.ok and a.words > 1", SCHEMA, "rule").columns == {"a.words", "b.ok"}


def test_parses_in_other_threads_fail_none() -> None:
    """CPython fails a parse when the collector runs during it and lets another thread parse."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(collected := lambda *_: sum(range(50)))
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            texts = repeat("a.words < 3 and not (b.ok or a.share > 0.5)", 2000)
            found = list(pool.map(parse, texts, repeat(SCHEMA), repeat("")))
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert {one.columns for one in found} == {frozenset({"a.words", "b.ok", "a.share"})}
