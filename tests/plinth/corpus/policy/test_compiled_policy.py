"""A compiled policy: which rules fire, and which are taken from published verdicts."""

import ast
from typing import Any

import pyarrow as pa
import pytest

from plinth.corpus.policy import expressions
from plinth.corpus.policy.compiled_policy import compile_policy
from plinth.corpus.policy.parameters import EditRule, Policy, Rule
from tests.rights import MIT

FEW = Rule(reason="few", drop="gopher_quality.word_count < 2")
MANY = Rule(reason="many", drop="gopher_quality.word_count > 3")
LABEL = Rule(reason="label", drop="language.label == 'de' or documents.source_bytes > 9")
COLUMNS = {"gopher_quality.word_count": pa.array([1, 3, 5], pa.int32())}
ANNOTATORS = ("gopher_quality", "language", "pii")


def test_a_comparison_of_several_rules_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "language.label in ['en', 'de'] and pii.total > 1 or pii.total == 0",
        "language.label in ['en', 'de'] and not pii.total > 1",
    ]
    rules = tuple(Rule(reason=f"r{i}", drop=text) for i, text in enumerate(texts))
    columns = {"language.label": pa.array(["en", "fr", None, "de"]), "pii.total": pa.array([2, 2, 0, None], pa.int32())}
    together = compile_policy(Policy(rules=rules), ANNOTATORS)
    alone = [compile_policy(Policy(rules=(rule,)), ANNOTATORS).fires(columns, 4)[0].tolist() for rule in rules]
    made, comparison = list[str](), expressions._comparison

    def counted(node: ast.Compare, *given: Any) -> Any:
        made.append(ast.unparse(node))
        return comparison(node, *given)

    monkeypatch.setattr(expressions, "_comparison", counted)
    assert together.fires(columns, 4).tolist() == alone
    assert sorted(made) == ["language.label in ['en', 'de']", "pii.total == 0", "pii.total > 1"]


def test_a_rule_that_did_not_change_is_read_from_what_is_published() -> None:
    before = Policy(rules=(FEW, LABEL))
    new = Policy(rules=(LABEL, MANY))
    reusing = compile_policy(new, ANNOTATORS).reusing(before)
    assert reusing.sidecars == {"gopher_quality": ["word_count"]}
    published = pa.array([["few"], [], ["few", "label"]])
    assert reusing.fires(COLUMNS, 3, published).tolist() == [[False, False, True], [False, False, True]]
    assert reusing.fires(COLUMNS, 3, pa.array([[], [], []], pa.list_(pa.string()))).tolist()[0] == [False] * 3
    reworded = LABEL.model_copy(update={"drop": f"({LABEL.drop})"})
    assert compile_policy(Policy(rules=(reworded,)), ANNOTATORS).reusing(before).stored == frozenset()


def test_columns_are_named_by_sidecar_and_strings_are_labels() -> None:
    edits = (EditRule(reason="pii", spans="pii.spans"),)
    compiled = compile_policy(Policy(rules=(FEW, LABEL), edits=edits), ANNOTATORS)
    expected = {"documents": ["source_bytes"], "gopher_quality": ["word_count"], "language": ["label"]}
    assert compiled.sidecars == expected | {"pii": ["spans"]}
    assert compiled.labels == {"language.label"}
    assert compiled.reusing(Policy(edits=edits)).sidecars == expected  # edits did not change


def test_the_licence_that_the_gate_reads_is_a_label() -> None:
    compiled = compile_policy(Policy(rules=(FEW,)), ANNOTATORS, rights=MIT)
    assert compiled.labels == {"documents.licence"}
