"""Curves of the evaluation page: what was measured at no step is left out, and the others stand."""

from __future__ import annotations

from typing import Any

from plinth_assets.candidate import _curves

LOOKS: list[dict[str, Any]] = [
    {"event": "evaluated", "step": 5, "tokens": 50, "slices": {"code": 2.0, "prose": None, "new": None}},
    {"event": "evaluated", "step": 9, "tokens": 90, "slices": {"code": 1.5, "prose": None, "new": 3.0}},
]


def test_a_slice_without_a_value_has_no_curve() -> None:
    (section,) = _curves(LOOKS, {})
    (group,) = section.curves
    assert [(one.name, one.steps, one.values) for one in group.curves] == [
        ("code", (5, 9), (2.0, 1.5)),
        ("new", (9,), (3.0,)),
    ]


def test_nothing_measured_is_no_section() -> None:
    assert list(_curves([look | {"slices": {"prose": None}} for look in LOOKS], {})) == []
    assert list(_curves([], {})) == []
