"""Figures of an evaluation: every slice and its interval, in the order of its axis; the curve and the context's end."""

from __future__ import annotations

import re
from typing import Any

from plinth.report import evaluation
from plinth.report.style import png, svg
from plinth_assets.measurements import evaluation_stage


def row(model: float, size: int = 1000) -> dict[str, Any]:
    return {"bytes": size, "model": model, "low": model - 0.1, "high": model + 0.1, "gzip": 3.0, "n": 4}


AXES = {
    "bucket": {"web": row(1.2, 10), "code": row(0.9, 99)},
    "length": {"64 KiB and more": row(1.0, 9999), "< 1 KiB": row(2.0)},
    "domain": {f"{number}.example": row(1.0, 1000 - number) for number in range(30)},
    "none": {},
}
CURVE = [{"start": start, "end": 2 * start or 8, **row(3.0)} | {"value": 3.0} for start in (0, 8, 16, 32)]


def test_every_axis_has_a_panel_with_its_slices_in_order() -> None:
    stats = {"overall": row(1.1, 20_000), "slices": AXES["bucket"], "axes": {**AXES, "one": {"alone": row(1.0)}}}
    del stats["axes"]["bucket"]
    text = svg(evaluation.intervals, evaluation_stage.section("", stats).groups, title="t")
    shown = [word.strip() for word in re.findall(r">([^<>]+)</text>", text)]
    assert {"bits per byte: all held-out text, by bucket", "by length", "by domain"} <= set(shown)
    assert not {"by none", "by one"} & set(shown)
    assert shown.index("&lt; 1 KiB") < shown.index("64 KiB and more")
    assert shown.index("code") < shown.index("web")
    assert [word for word in shown if word.endswith(".example")][:2] == ["0.example", "1.example"]


def test_positions_have_both_curves_and_the_context() -> None:
    text = svg(evaluation.by_position, {"context_tokens": 64, "all": CURVE, "long": CURVE}, title="t")
    assert all(word in text for word in ("all documents", "documents that fill the context", "context", ">32<"))
    alone = svg(evaluation.by_position, {"context_tokens": 64, "all": CURVE, "long": []}, title="t")
    assert "fill the context" not in alone
    assert png(evaluation.by_position, {"context_tokens": 64, "all": [], "long": []})[:4] == b"\x89PNG"
