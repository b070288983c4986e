"""The gate on forgetting: only a comparison with the parent counts, and the upper end of its interval decides."""

from __future__ import annotations

from typing import Any

import pytest

from plinth.compute.context import Context
from plinth_registry import evidence
from plinth_registry.candidate import ancestry
from plinth_registry.gates import _by_name
from plinth_registry.gates.facts import ComparisonFacts, Evidence, PairedLine

PARENT, OTHER = "p" * 64, "o" * 64


def line(label: str, high: float, low: float = -0.01, clusters: int = 50, kind: str = "slices") -> PairedLine:
    known = {"kind": kind, "measure": "bits per byte", "fewer_is_better": True, "value": 0.0}
    return PairedLine(**known, slice=label, low=low, high=high, clusters=clusters)


def judged(*own: PairedLine, parent: str | None = PARENT, champion: str = PARENT, **policy: Any) -> Any:
    """With the whole of the parent's text no worse, unless lines of it are given."""
    theirs = () if any(one.kind != "slices" for one in own) else (line("all", 0.0, kind="parent slices"),)
    lines = own and (*own, *theirs)
    compared = ComparisonFacts(candidate="c" * 64, champion=champion, lines=lines) if lines else None
    return _by_name("forgetting", policy, Evidence(parent=parent, measured={"comparison": compared}))


def test_the_upper_end_of_every_slice_decides() -> None:
    good = (line("all", 0.01), line("bucket web", 0.019))
    assert judged(*good).passed
    worse = judged(*good, line("bucket code", 0.03))
    assert not worse.passed
    assert "above the limit: code +0.0 (95% upper bound 0.03), limit 0.02, n 50" in worse.reason
    assert judged(*good, line("bucket code", 0.03), margins={"bucket code": 0.05}).passed
    assert not judged(*good, margin=0.015).passed


def test_text_that_the_parent_held_out_decides_too() -> None:
    good = line("all", 0.01), line("bucket web", 0.01)
    ours = (*good, line("all", 0.01, kind="parent slices"))
    assert judged(*ours).passed
    worse = judged(*ours, line("bucket code", 0.03, kind="parent slices"))
    assert "code of the parent's text +0.0 (95% upper bound 0.03), limit 0.02" in worse.reason
    assert not worse.passed
    small = line("bucket code", 0.03, kind="parent slices", clusters=2)
    unknown = judged(*good, small)
    assert "imported weights have none" in unknown.reason
    assert not unknown.passed
    assert judged(*good, small, parents_text=False).passed


@pytest.mark.parametrize(
    ("lines", "given", "reason"),
    [
        ((line("all", 0.0),), {"champion": OTHER}, "not with the parent"),
        ((), {}, "compared with nothing"),
        ((line("bucket web", 0.0),), {}, "as a whole was not compared"),
        ((line("all", 0.5, low=0.5),), {}, "(95% upper bound 0.5), limit 0.02, n 50, interval without width"),
        ((line("all", 0.0),), {"parent": None}, "no evidence: parent"),
    ],
)
def test_what_is_not_shown_does_not_pass(lines: tuple[PairedLine, ...], given: dict[str, Any], reason: str) -> None:
    result = judged(*lines, **given)
    assert not result.passed
    assert reason in result.reason


def test_small_slices_are_counted_and_random_weights_forget_nothing() -> None:
    result = judged(line("all", 0.0), line("bucket web", 9.0, clusters=5))
    assert result.passed
    assert result.reason.endswith("1 slice not judged (n below 30): web (n 5)")
    random = judged(parent="")
    assert (random.state, random.blocks, random.reason) == (
        "not applicable", False, "the run started from random weights"
    )  # fmt: skip


def test_figures_that_their_tables_do_not_give_pass_nothing() -> None:
    compared = ComparisonFacts(candidate="c" * 64, champion=PARENT, lines=(line("all", 0.0),))
    told = Evidence(parent=PARENT, measured={"comparison": compared}, miscounted={"comparison": ("all: 1, counted 2",)})
    assert _by_name("forgetting", {}, told).reason.endswith("; does not match its tables: all: 1, counted 2")
    asked = {"parents_text": False}
    assert _by_name("forgetting", asked, told.model_copy(update={"miscounted": {}})).passed
    assert _by_name("forgetting", asked, told).reason == "does not match its tables: all: 1, counted 2"


def test_the_parent_is_read_from_the_signed_chain(ctx: Context, make_line: Any) -> None:
    parent = make_line(1)
    child = make_line(2, parent.checkpoint)
    chains = [ancestry(ctx, one.checkpoint.digest, one.evaluation.digest) for one in (parent, child)]
    assert [evidence._parent(chain) for chain in (*chains, None)] == ["", parent.checkpoint.digest, None]
