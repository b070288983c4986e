"""The gate of quantized and pruned forms, which does not apply to candidates."""

from __future__ import annotations

import pytest

from plinth_registry.gates import evaluate, of_exports
from plinth_registry.gates.facts import ComparisonFacts, Evidence, PairedLine
from plinth_registry.gates.settings import gate_policy

LEFT_OUT = {"max_bits_per_byte": "there is no bound on this text"}


def line(label: str, high: float, clusters: int = 50, low: float = -0.001, kind: str = "slices") -> PairedLine:
    return PairedLine(
        kind=kind, measure="bits per byte", slice=label, fewer_is_better=True, clusters=clusters,
        value=(low + high) / 2, low=low, high=high,
    )  # fmt: skip


def asked(lines: list[PairedLine], **params: object) -> tuple[bool, str]:
    policy = gate_policy({"release": "demo", "extensions": {"compressed": params}, "without": LEFT_OUT})
    evidence = Evidence(
        measured={"comparison": ComparisonFacts(candidate="f" * 64, champion="c" * 64, lines=tuple(lines))}
    )
    (found,) = of_exports(policy, evidence)
    return found.passed, found.reason


def test_the_upper_end_of_every_interval_lies_below_the_margin() -> None:
    fine = [line("all", 0.01), line("bucket web", 0.019)]
    assert asked(fine) == (
        True,
        "2 differences from the release within the limit; worst: web +0.009 (95% upper bound 0.019), limit 0.02, n 50",
    )
    passed, reason = asked([*fine, line("bucket code", 0.02)])
    assert (passed, reason) == (
        False,
        "1 of 3 differences from the release above the limit: code +0.0095 (95% upper bound 0.02), limit 0.02, n 50",
    )
    assert asked([*fine, line("bucket code", 0.02)], margins={"bucket code": 0.03})[0]
    assert asked([*fine, line("bucket code", 0.5, clusters=9)])[0]
    assert not asked([*fine, line("bucket code", 0.5, clusters=9)], min_documents=9)[0]
    assert not asked(fine, margin=0.01)[0]
    assert asked([line("all", 0.5, clusters=3)])[0] is False  # the whole is always judged


@pytest.mark.parametrize("lines", [[], [line("bucket web", 0.0)], [line("all", 0.0, kind="probes")]])
def test_a_form_that_was_not_measured_has_not_passed(lines: list[PairedLine]) -> None:
    passed, reason = asked(lines)
    assert not passed
    assert "no evidence" in reason


def test_an_interval_without_width_passes_only_where_nothing_differs() -> None:
    assert asked([line("all", 0.0, low=0.0)])[0]
    assert not asked([line("all", 0.01, low=0.01)])[0]


def test_candidates_are_not_asked() -> None:
    policy = gate_policy({"release": "demo", "extensions": {"compressed": {"margin": 0.5}}, "without": LEFT_OUT})
    assert "compressed" not in {one.name for one in evaluate(policy, Evidence())}
    (closed,) = of_exports(None, Evidence())
    assert (closed.passed, closed.reason) == (False, "no evidence: comparison")
