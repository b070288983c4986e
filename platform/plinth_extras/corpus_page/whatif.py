"""Effect of a changed rule: the documents that change sides, from the ledger's columns.

The rule is compiled and evaluated by the policy stage's own code (`plinth.corpus.policy`). Only the rule's columns and
the names of the rules that fired are read. The policy is the first stage, so the counts are exact for what it keeps and
drops. A newly kept document may still be removed by deduplication, which needs the pipeline.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus.annotate.base import ANNOTATORS
from plinth.corpus.policy.compiled_policy import DOCUMENTS, GATE_REASONS, compile_policy
from plinth.corpus.policy.expressions import Expression, column_name, syntax
from plinth.corpus.policy.parameters import Policy, Rule
from plinth.corpus.policy.policy import published
from plinth.corpus.policy.whatif import BATCH_ROWS
from plinth.errors import MissingError, RequestError
from plinth.provenance.ledger_columns import JOIN
from plinth.storage.parts import iter_batches
from plinth_extras.corpus_page.ledger import LedgerPart, OpenLedger

#: Documents listed per direction.
SAMPLES: Final = 25
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EvaluatedRule:
    """Published rule of a policy, and the buckets in which it was evaluated in this form."""

    policy: str
    reason: str
    text: str
    buckets: tuple[str, ...]


@dataclass(frozen=True)
class RuleThreshold:
    """Number that a rule compares with; `column` is empty if the comparison has more than one column.

    Args:
        start, end: position of the number in the rule's text.
    """

    column: str
    sign: str
    value: float
    start: int
    end: int


@dataclass
class Side:
    """Documents that change sides in one direction."""

    documents: int = 0
    text_bytes: int = 0
    trained: int = 0
    representatives: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)  # part of the ledger, and row


@dataclass
class RuleEffect:
    """Effect of a changed rule, over the buckets that have it."""

    documents: int = 0
    text_bytes: int = 0
    kept_before: int = 0
    kept_after: int = 0
    kept_bytes_before: int = 0
    kept_bytes_after: int = 0
    fired_before: int = 0
    fired_after: int = 0
    dropped: Side = field(default_factory=Side)
    kept: Side = field(default_factory=Side)


def rules(ctx: Context, ledger: OpenLedger, policies: Mapping[str, str]) -> list[EvaluatedRule]:
    """Return the rules with which the ledger's verdicts were made, in order, by policy.

    Args:
        policies: name of the policy of each bucket, from the recipe; a bucket that is not in it has its own name.
    """
    found: dict[tuple[str, str], list[Any]] = {}
    for bucket in dict.fromkeys(one.bucket for one in ledger.parts):
        policy, _ = published(ctx.refs.load(ledger.made.inputs[f"{bucket}/policy"]))
        for rule in policy.rules:
            if rule.reason in GATE_REASONS:  # whether the rule or the license gate fired is not recorded
                continue
            text, buckets = found.setdefault((policies.get(bucket, bucket), rule.reason), [rule.drop, []])
            buckets += [bucket] if text == rule.drop else []
    return [EvaluatedRule(policy, reason, text, tuple(buckets)) for (policy, reason), (text, buckets) in found.items()]


def fired(ledger: OpenLedger, known: Sequence[EvaluatedRule]) -> dict[tuple[str, str], int]:
    """Return the number of documents on which each rule fired, by policy and reason."""
    rows = ledger.query(
        f"select bucket, f, count(*) from (select bucket, unnest(fired) as f from {ledger.source}) group by 1, 2", []
    )
    counts = {(bucket, reason): int(n) for bucket, reason, n in rows}
    return {(one.policy, one.reason): sum(counts.get((b, one.reason), 0) for b in one.buckets) for one in known}


def rule_of(known: Sequence[EvaluatedRule], policy: str, reason: str) -> EvaluatedRule:
    """Return a rule by policy and reason.

    Raises:
        MissingError: there is no such rule.
    """
    for one in known:
        if (one.policy, one.reason) == (policy, reason):
            return one
    have = ", ".join(f"{one.policy}/{one.reason}" for one in known)
    raise MissingError(f"no rule {policy}/{reason} was evaluated", expected=f"one of {have}")


def thresholds(text: str) -> tuple[RuleThreshold, ...]:
    """Return the numbers that a rule compares columns with, in the order of the text."""
    text = text.strip()
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:  # the parser counts bytes of UTF-8
        return len(text.encode()[: starts[line - 1] + column].decode())

    found = []
    for node in (node for node in ast.walk(syntax(text)) if isinstance(node, ast.Compare)):
        columns = {column_name(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        column = next(iter(columns)) if len(columns) == 1 else ""
        for at, operand in enumerate([node.left, *node.comparators]):
            value = _number(operand)
            if value is not None:
                sign = _SIGNS[type(node.ops[at - 1])] if at else _MIRRORED[type(node.ops[0])]
                end = place(operand.end_lineno or 1, operand.end_col_offset or 0)
                found.append(RuleThreshold(column, sign, value, place(operand.lineno, operand.col_offset), end))
    return tuple(sorted(found, key=lambda one: one.start))


_SIGNS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<", ast.LtE: "≤", ast.Gt: ">", ast.GtE: "≥", ast.Eq: "=", ast.NotEq: "≠"
}  # fmt: skip
_MIRRORED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: ">", ast.LtE: "≥", ast.Gt: "<", ast.GtE: "≤", ast.Eq: "=", ast.NotEq: "≠"
}  # fmt: skip


def _number(node: ast.expr) -> float | None:
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    if not isinstance(inner, ast.Constant) or isinstance(inner.value, bool):
        return None
    if not isinstance(inner.value, int | float):
        return None
    return float(inner.value) if inner is node else -float(inner.value)


def moved(text: str, values: Mapping[int, str]) -> str:
    """Return a rule's text with other numbers, by the index of the threshold.

    Raises:
        RequestError: a value is not a finite number, or there is no such threshold.
    """
    text, known = text.strip(), thresholds(text)
    for index in sorted(values, reverse=True):
        given = values[index].strip()
        try:
            finite = abs(float(given)) < 2.0**63 and "_" not in given
        except ValueError:
            finite = False
        if not finite or index >= len(known):
            raise RequestError(f"{given!r} is not a threshold", expected=f"a number for one of {len(known)} thresholds")
        text = text[: known[index].start] + given + text[known[index].end :]
    return text


def compiled(ledger: OpenLedger, rule: EvaluatedRule, text: str) -> Expression:
    """Parse and check a changed rule as the policy stage does.

    Raises:
        RecipeError: the rule cannot be parsed, or names a column that does not exist.
        MissingError: the ledger does not have a column of the rule.
    """
    policy = Policy(rules=(Rule(reason=rule.reason, drop=text),))
    ((_, expression),) = compile_policy(
        policy, annotators(ledger, rule.buckets), f"corpus.policies.{rule.policy}"
    ).rules
    absent = [name for name in sorted(expression.columns) if ledger_column(name) not in ledger.columns]
    if absent:
        raise MissingError(f"the ledger has no column {', '.join(absent)}", remedy="`plinth run --select ledger`")
    return expression


def annotators(ledger: OpenLedger, buckets: Sequence[str]) -> tuple[str, ...]:
    """Return the annotators whose columns the ledger has for buckets."""
    have = {name.partition("/")[2] for name in ledger.made.inputs if name.partition("/")[0] in buckets}
    return tuple(sorted(have & set(ANNOTATORS)))


def ledger_column(name: str) -> str:
    """Return the ledger's name of a policy column `sidecar.column`."""
    sidecar, _, column = name.partition(".")
    return column if sidecar == DOCUMENTS else f"{sidecar}{JOIN}{column}"


def effect(ctx: Context, ledger: OpenLedger, rule: EvaluatedRule, text: str, seed: int = 1) -> RuleEffect:
    """Evaluate a changed rule on every document of its buckets, and compare with the published verdicts.

    Args:
        seed: key of the hash that chooses the documents to list.

    Raises:
        RecipeError: the changed rule is invalid.
        MissingError, IntegrityError: a part of the ledger is missing or damaged.
    """
    expression, found = compiled(ledger, rule, text), RuleEffect()
    ranked: dict[str, list[tuple[int, tuple[int, int]]]] = {"dropped": [], "kept": []}
    for number, part in enumerate(ledger.parts):
        if part.bucket not in rule.buckets:
            continue
        first = 0
        for batch in _batches(ctx, ledger, part, expression):
            masks = _judge(batch, expression, rule.reason, found)
            for name, mask in masks.items():
                at = np.flatnonzero(mask)
                keys = _ranks(at + first, number, seed)
                best = np.argsort(keys, kind="stable")[:SAMPLES]
                ranked[name] += [(int(keys[i]), (number, first + int(at[i]))) for i in best]
                ranked[name] = sorted(ranked[name])[:SAMPLES]
            first += batch.num_rows
    found.dropped.places, found.kept.places = ([place for _, place in ranked[name]] for name in ("dropped", "kept"))
    return found


def _batches(ctx: Context, ledger: OpenLedger, part: LedgerPart, expression: Expression) -> Iterator[pa.RecordBatch]:
    own = {ledger_column(name) for name in expression.columns}
    names = [*dict.fromkeys(("fired", "decision", "cluster_size", "text_bytes", *sorted(own)))]
    labels = [name for name in names if ledger.columns[name] == "VARCHAR"]
    yield from iter_batches(ctx.store, part.part, names, BATCH_ROWS, labels)


def _judge(batch: pa.RecordBatch, expression: Expression, reason: str, found: RuleEffect) -> dict[str, Mask]:
    """Add a batch to the counts. Return masks of the documents that are newly dropped and newly kept."""
    columns = {name: batch.column(ledger_column(name)) for name in expression.columns}
    now = expression.evaluate(columns, batch.num_rows)
    fired, size = batch.column("fired"), batch.column("text_bytes").fill_null(0).to_numpy(zero_copy_only=False)
    times = pc.list_value_length(fired).to_numpy(zero_copy_only=False)
    own = np.zeros(batch.num_rows, dtype=np.bool_)
    hits = pc.equal(fired.flatten(), reason).to_numpy(zero_copy_only=False)
    own[pc.list_parent_indices(fired).to_numpy()[hits]] = True
    before, after = times > 0, (times - own > 0) | now
    found.documents += batch.num_rows
    found.text_bytes += int(size.sum())
    found.kept_before += int(np.count_nonzero(~before))
    found.kept_after += int(np.count_nonzero(~after))
    found.kept_bytes_before += int(size[~before].sum())
    found.kept_bytes_after += int(size[~after].sum())
    found.fired_before += int(np.count_nonzero(own))
    found.fired_after += int(np.count_nonzero(now))
    masks = {"dropped": ~before & after, "kept": before & ~after}
    for name, mask in masks.items():
        side, at = getattr(found, name), np.flatnonzero(mask)
        if not at.size:
            continue
        some = batch.take(pa.array(at))
        decision = some.column("decision")
        side.documents += int(at.size)
        side.text_bytes += int(size[at].sum())
        trained = pc.equal(_plain(decision), "train").to_numpy(zero_copy_only=False)
        alive = pc.not_equal(_plain(decision), "drop").to_numpy(zero_copy_only=False)
        crowd = pc.fill_null(pc.greater(some.column("cluster_size"), 1), False).to_numpy(zero_copy_only=False)
        side.trained += int(np.count_nonzero(trained))
        side.representatives += int(np.count_nonzero(alive & crowd))
    return masks


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _ranks(rows: npt.NDArray[np.int64], part: int, seed: int) -> npt.NDArray[np.uint64]:
    """Return a keyed hash of each place (SplitMix64's finalizer), by which the listed documents are chosen."""
    key = np.uint64((seed * 0x9E3779B97F4A7C15 + part * 0xD1B54A32D192ED03) % 2**64)
    value = rows.astype(np.uint64) ^ key
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    return value ^ (value >> np.uint64(31))
