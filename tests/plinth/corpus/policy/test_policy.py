from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import manifest
from plinth.corpus.annotate.base import ANNOTATORS
from plinth.corpus.policy import policy
from plinth.corpus.policy.parameters import EditRule, Policy, Rule
from plinth.errors import IntegrityError, RecipeError
from plinth.records import Manifest, Step
from plinth.storage.parts import read_table, write_table
from tests.rights import MIT

TEXTS = ["first", "second", "third", "fourth"]
LANGUAGE = [("en", 0.9), ("de", 0.8), ("en", 0.4), ("de", 0.2)]
PERMITTED = [True, True, False, False]


def span(start: int, end: int, kind: str = "email") -> dict[str, Any]:
    return {"start_cp": start, "end_cp": end, "replacement": f"<{kind.upper()}>", "reason": kind}


def nothing(kind: pa.DataType) -> Any:
    return [] if pa.types.is_list(kind) else "" if pa.types.is_string(kind) else pa.scalar(0).cast(kind).as_py()


class Bucket:
    """One bucket of four documents in two parts, with three sidecars."""

    def __init__(self, tiny: Any) -> None:
        self.ctx = tiny.ctx
        corpus = tiny.corpus({"prose": [[tiny.Doc(text) for text in TEXTS[:3]], [tiny.Doc(TEXTS[3])]]})
        self.documents = corpus.documents["prose"]
        spans = [[], [span(0, 3)], [span(1, 2), span(4, 5, "ip")], [span(0, 6)]]
        self.annotations = {
            "language": self.sidecar("language", [{"label": label, "score": score} for label, score in LANGUAGE]),
            "licence": self.sidecar("licence", [{"expression": "MIT", "permitted": ok} for ok in PERMITTED]),
            "pii": self.sidecar("pii", [{"email": 0, "ip": 0, "card": 0, "spans": each} for each in spans]),
        }

    def sidecar(self, name: str, rows: Sequence[Mapping[str, Any]], cut: int = 3) -> Manifest:
        schema = ANNOTATORS[name].schema
        rest = {field.name: nothing(field.type) for field in schema}  # columns that no rule here reads
        parts = [
            write_table(
                self.ctx.store,
                f"part-{i:05d}.parquet",
                pa.Table.from_pylist([rest | dict(row) for row in some], schema=schema),
            )
            for i, some in enumerate((rows[:cut], rows[cut:]))
        ]
        return manifest(f"prose/{name}", Step(name="test", version="1"), {}, parts)

    def judge(self, rules: Sequence[tuple[str, str]] = (), edits: Sequence[tuple[str, str]] = ()) -> Manifest:
        given = Policy(
            rules=tuple(Rule(reason=reason, drop=drop) for reason, drop in rules),
            edits=tuple(EditRule(reason=reason, spans=spans) for reason, spans in edits),
        )
        return policy.run(self.ctx, "prose", given, self.documents, self.annotations, MIT)

    def rows(self, made: Manifest) -> list[dict[str, Any]]:
        return [row for part in made.named("part-") for row in read_table(self.ctx.store, part).to_pylist()]


@pytest.fixture
def bucket(tiny: Any) -> Bucket:
    return Bucket(tiny)


RULES = (
    ("foreign", 'language.label != "en"'),
    ("unsure", "language.score < 0.5"),
    ("licence", "not licence.permitted"),
)


def test_first_rule_is_the_reason_and_all_are_counted(bucket: Bucket) -> None:
    made = bucket.judge(RULES)
    rows = bucket.rows(made)
    assert [row["keep"] for row in rows] == [True, False, False, False]
    assert [row["reason"] for row in rows] == [None, "foreign", "unsure", "foreign"]
    assert [row["fired"] for row in rows] == [[], ["foreign"], ["unsure", "licence"], ["foreign", "unsure", "licence"]]
    assert made.stats == {
        "documents": 4,
        "kept": 1,
        "kept_bytes": len("first"),
        "dropped": {"foreign": 2, "unsure": 1},
        "fired": {"foreign": 2, "unsure": 2, "licence": 2},
        "edits": {},
    }
    assert [part.name for part in made.parts] == ["part-00000.parquet", "part-00001.parquet"]
    assert made.parts[1].stats["dropped"] == {"foreign": 1}
    assert read_table(bucket.ctx.store, made.parts[0]).schema.equals(policy.SCHEMA)


def test_what_judged_a_bucket_is_read_back(bucket: Bucket) -> None:
    given, rights = policy.published(bucket.judge(RULES))
    assert [(rule.reason, rule.drop) for rule in given.rules] == list(RULES)
    assert rights == MIT.within(bucket.documents)


def test_a_policy_without_rules_keeps_everything(bucket: Bucket) -> None:
    made = bucket.judge()
    assert bucket.rows(made) == [{"keep": True, "reason": None, "fired": [], "edits": []}] * 4
    assert made.stats["kept_bytes"] == sum(map(len, TEXTS))
    assert set(made.inputs) == {"prose/documents"}


def test_columns_of_documents_can_be_asked_about(bucket: Bucket) -> None:
    rows = bucket.rows(bucket.judge([("long", "documents.source_bytes > 5"), ("free", 'documents.licence != "MIT"')]))
    assert [row["reason"] for row in rows] == [None, "long", None, "long"]


def test_touching_spans_need_no_python_and_overlapping_ones_become_one_edit(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edits(*spans: list[dict[str, Any]]) -> list[list[tuple[int, int]]]:
        rows = [{"email": 0, "ip": 0, "card": 0, "spans": each} for each in spans]
        bucket.annotations["pii"] = bucket.sidecar("pii", rows)
        found = bucket.rows(bucket.judge(edits=[("pii", "pii.spans")]))
        return [[(edit["start_cp"], edit["end_cp"]) for edit in row["edits"]] for row in found]

    assert edits([span(0, 4), span(3, 9)], [], [], []) == [[(0, 9)], [], [], []]
    monkeypatch.setattr(policy, "_disjoint", None)
    apart = [[(0, 3), (3, 5)], [(1, 2)], [(0, 6)], []]  # those of one document do not overlap those of the next
    assert edits(*([span(*each) for each in spans] for spans in apart)) == apart


def test_only_the_sidecars_that_are_read_count(bucket: Bucket) -> None:
    first = bucket.judge([("unsure", "language.score < 0.5")])
    assert set(first.inputs) == {"prose/documents", "prose/language"}
    bucket.annotations["licence"] = bucket.sidecar("licence", [{"expression": "MIT", "permitted": True}] * 4)
    assert bucket.judge([("unsure", "language.score < 0.5")]).digest == first.digest


def test_a_new_threshold_reads_numbers_and_no_text(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = policy.iter_aligned

    def recording(store: Any, *sources: Any, **how: Any) -> Any:
        read.extend(column for _, columns in sources for column in columns)
        return original(store, *sources, **how)

    monkeypatch.setattr(policy, "iter_aligned", recording)
    assert bucket.judge([("unsure", "language.score < 0.1")]).stats["kept"] == 4
    assert bucket.judge([("unsure", "language.score < 0.3")]).stats["kept"] == 3
    assert set(read) == {"score", "source_bytes", "licence"}


def test_a_finished_part_is_not_judged_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bucket.judge(RULES)
    monkeypatch.setattr(policy, "_judge", None)
    assert bucket.judge(RULES).digest == first.digest


@pytest.mark.parametrize(
    ("rules", "edits", "says"),
    [
        ([("x", "gopher_quality.word_count < 3")], [], "no column 'gopher_quality.word_count'"),  # not annotated
        ([("x", "language.scor < 3")], [], "did you mean 'language.score'?"),
        ([("x", "documents.text is None")], [], "no column 'documents.text'"),
        ([("x", "language.score < 3"), ("x", "language.score > 3")], [], "more than one rule has the reason x"),
        ([], [("x", "language.label")], "is not a span column"),
        ([], [("x", "pii.span")], "is not a span column"),
    ],
)
def test_wrong_policies_are_refused(bucket: Bucket, rules: Any, edits: Any, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        bucket.judge(rules, edits)
    assert says in str(caught.value)


def test_a_sidecar_of_other_documents_is_refused(bucket: Bucket) -> None:
    rows = [{"label": label, "score": score} for label, score in LANGUAGE]
    bucket.annotations["language"] = bucket.sidecar("language", rows, cut=2)
    with pytest.raises(IntegrityError):
        bucket.judge(RULES)


def test_overlapping_spans_become_one_edit() -> None:
    assert policy.merged([span(5, 9, "ip"), span(0, 6)]) == [span(0, 6) | {"end_cp": 9}]
    assert policy.merged([span(0, 4), span(2, 9, "ip")]) == [span(0, 9, "ip")]
    assert policy.merged([span(0, 4), span(4, 6)]) == [span(0, 4), span(4, 6)]  # touching is not overlapping
    assert policy.merged([span(0, 3), span(1, 4, "ip"), span(2, 9, "card")]) == [span(0, 9, "card")]
    assert policy.merged([span(1, 3), span(1, 3, "ip")]) == [span(1, 3)]


SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 9), st.sampled_from(["email", "ip"])).map(
        lambda made: span(made[0], made[0] + made[1], made[2])
    ),
    max_size=12,
)


@given(SPANS)
def test_merged_edits_cover_the_spans_and_nothing_else(spans: list[dict[str, Any]]) -> None:
    edits = policy.merged(spans)
    assert all(left["end_cp"] <= right["start_cp"] for left, right in pairwise(edits))

    def covered(found: list[dict[str, Any]]) -> set[int]:
        return {point for each in found for point in range(each["start_cp"], each["end_cp"])}

    assert covered(edits) == covered(spans)
    assert policy.merged(edits) == edits
