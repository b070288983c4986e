import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.annotate.licence import MAX_TOKENS, LicenceParams, annotate_licence, judge

PERMITTED = ("MIT", "Apache-2.0", "BSD-3-Clause", "GPL-2.0-only WITH Classpath-exception-2.0", "unknown")


@pytest.mark.parametrize(
    ("expression", "form", "permitted"),
    [
        ("MIT", "MIT", True),
        (" mit ", "MIT", True),
        ("GPL-3.0-only", "GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", "GPL-3.0-only OR MIT", True),
        ("gpl-3.0-only and mit", "gpl-3.0-only AND MIT", False),
        ("MIT AND Apache-2.0", "MIT AND Apache-2.0", True),
        ("MIT OR GPL-3.0-only AND GPL-2.0-only", "MIT OR GPL-3.0-only AND GPL-2.0-only", True),  # AND binds first
        ("(MIT OR GPL-3.0-only) AND GPL-2.0-only", "(MIT OR GPL-3.0-only) AND GPL-2.0-only", False),
        ("((MIT)) AND (Apache-2.0 AND MIT)", "MIT AND Apache-2.0", True),
        ("MIT OR (Apache-2.0 OR GPL-3.0-only)", "MIT OR Apache-2.0 OR GPL-3.0-only", True),
        ("MIT AND MIT", "MIT", True),
        ("Apache-2.0 WITH LLVM-exception", "Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0-only with classpath-exception-2.0", "GPL-2.0-only WITH Classpath-exception-2.0", True),
        ("GPL-2.0-only WITH GCC-exception-2.0", "GPL-2.0-only WITH GCC-exception-2.0", False),
        ("GPL-2.0-only", "GPL-2.0-only", False),
        ("apache-2.0+", "Apache-2.0+", True),
        ("LicenseRef-acme", "LicenseRef-acme", False),
        ("unknown", "unknown", False),  # although it is on the list
        ("unknown AND MIT", "unknown AND MIT", False),
        ("NOASSERTION", "unknown", False),
        ("NONE", "unknown", False),
        ("", "unknown", False),
        ("MIT License", "unknown", False),
        ("MIT/Apache-2.0", "unknown", False),
        ("MIT OR", "unknown", False),
        ("OR MIT", "unknown", False),
        ("MIT OR OR MIT", "unknown", False),
        ("(MIT", "unknown", False),
        ("MIT)", "unknown", False),
        ("()", "unknown", False),
        ("MIT WITH", "unknown", False),
        ("WITH", "unknown", False),
        ("(" * 5000 + "MIT" + ")" * 5000, "unknown", False),
        (" OR ".join(["MIT"] * MAX_TOKENS), "unknown", False),
    ],
)
def test_expressions(expression: str, form: str, permitted: bool) -> None:
    assert judge(expression, PERMITTED) == (form, permitted)


def test_nothing_is_permitted_unless_listed() -> None:
    batch = pa.record_batch({"licence": pa.array(["MIT", "unknown"])})
    assert annotate_licence(batch, LicenceParams()).column("permitted").to_pylist() == [False, False]
    made = annotate_licence(batch, LicenceParams(permitted=("MIT",)))
    assert made.to_pylist() == [
        {"expression": "MIT", "permitted": True, "redistribute": True, "commercial": True},
        {"expression": "unknown", "permitted": False, "redistribute": False, "commercial": False},
    ]


NAMES = st.sampled_from(["MIT", "GPL-3.0-only", "Apache-2.0", "X-1.0"])


def joined(parts: st.SearchStrategy[tuple[str, bool]]) -> st.SearchStrategy[tuple[str, bool]]:
    """Return two joined expressions with their value in Boolean algebra."""
    return st.one_of(
        st.tuples(parts, parts).map(lambda two: (f"({two[0][0]}) OR ({two[1][0]})", two[0][1] or two[1][1])),
        st.tuples(parts, parts).map(lambda two: (f"({two[0][0]}) AND ({two[1][0]})", two[0][1] and two[1][1])),
    )


@given(st.recursive(NAMES.map(lambda name: (name, name in PERMITTED)), joined, max_leaves=12))
def test_verdicts_are_those_of_boolean_algebra(case: tuple[str, bool]) -> None:
    expression, permitted = case
    form, allowed = judge(expression, PERMITTED)
    if form == "unknown":
        assert len(expression.replace("(", "( ").replace(")", " )").split()) > MAX_TOKENS
    else:
        assert allowed == permitted
        assert judge(form, PERMITTED) == (form, permitted)  # the normal form is a fixed point and means the same


@given(st.text(alphabet="()MITORANDWHx -+.:é\n\x00", max_size=40))
def test_any_text_has_an_answer(expression: str) -> None:
    form, permitted = judge(expression, PERMITTED)
    assert form
    assert not permitted or "MIT" in form


def test_lists_by_use() -> None:
    batch = pa.record_batch({"licence": ["MIT", "CC-BY-NC-4.0", "CC-BY-NC-4.0 OR MIT", "GPL-3.0-only", "MIT"]})
    permitted = ("MIT", "CC-BY-NC-4.0")
    free = annotate_licence(batch, LicenceParams(permitted=permitted, commercial=("MIT",))).to_pydict()
    assert free["permitted"] == [True, True, True, False, True]
    assert free["commercial"] == [True, False, True, False, True]
    assert free["redistribute"] == free["permitted"]
    sold = annotate_licence(
        batch, LicenceParams(permitted=permitted, commercial=("MIT",), uses=("commercial",))
    ).to_pydict()
    assert sold["permitted"] == [True, False, True, False, True]


def test_a_use_never_widens_what_is_permitted() -> None:
    batch = pa.record_batch({"licence": ["GPL-3.0-only"]})
    row = annotate_licence(
        batch, LicenceParams(permitted=("MIT",), commercial=("GPL-3.0-only",), uses=("commercial",))
    ).to_pylist()[0]
    assert not row["permitted"]
    assert not row["commercial"]
