"""The Sankey: every document is in a bar, reasons beyond the largest are one, labels do not overlap."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from plinth.report import sankey
from plinth.report.style import png, svg


def test_every_removed_document_is_in_a_bar(funnel: dict[str, Any]) -> None:
    drawn = sankey.levels(funnel)
    removed = {row["stage"]: sum(r["documents"] for r in row["reasons"].values()) for row in funnel["total"]["stages"]}
    assert {level.stage: sum(one.documents for one in level.reasons) for level in drawn} == {
        stage: count for stage, count in removed.items() if count
    }
    for level in drawn:
        assert [one.documents for one in level.reasons] == sorted((r.documents for r in level.reasons), reverse=True)


def many(reasons: int) -> dict[str, Any]:
    """Return one bucket and one stage with `reasons` reasons of 1, 2, 3 … documents."""
    found = {f"rule_{i:02}": {"documents": i, "bytes": 10 * i} for i in range(1, reasons + 1)}
    gone = sum(one["documents"] for one in found.values())
    row = {"stage": "policy", "documents_in": 1000, "documents_out": 1000 - gone, "removed": gone, "reasons": found}
    account = {"stages": [{**row, "bytes_out": 5000}]}
    return {"buckets": {"web": account}, "total": account}


@pytest.mark.parametrize(
    ("reasons", "shown"),
    [
        (3, ["rule_03", "rule_02", "rule_01"]),
        (4, ["rule_04", "rule_03", "2 more"]),
        (30, ["rule_30", "rule_29", "28 more"]),
    ],
)
def test_small_reasons_are_drawn_together(reasons: int, shown: list[str]) -> None:
    (level,) = sankey.levels(many(reasons), most=2)
    assert [one.name for one in level.reasons] == shown
    assert sum(one.documents for one in level.reasons) == reasons * (reasons + 1) / 2
    assert sum(one.text_bytes or 0 for one in level.reasons) == 10 * reasons * (reasons + 1) / 2


@pytest.mark.parametrize("buckets", [4, 14])
def test_labels_do_not_overlap(funnel: dict[str, Any], buckets: int) -> None:
    """Measured as drawn: no two texts share a place, and none leaves the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    own = list(funnel["buckets"].values())
    crowd = {f"a-bucket-{i:02}": own[i % len(own)] for i in range(buckets)}
    fig = sankey.figure({"buckets": crowd, "total": funnel["total"]})
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    texts = fig.axes[0].texts
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    page = fig.bbox
    for text, box in zip(texts, boxes, strict=True):
        assert box.x0 >= page.x0 - 1, text
        assert box.x1 <= page.x1 + 1, text
    for (a, one), (b, other) in itertools.combinations(zip(texts, boxes, strict=True), 2):
        assert not one.padded(-1.5).overlaps(other.padded(-1.5)), (a.get_text(), b.get_text())


def test_rendered_the_same_every_time(funnel: dict[str, Any]) -> None:
    assert png(sankey.figure, funnel) == png(sankey.figure, funnel)
    text = svg(sankey.figure, funnel, title="Funnel")
    assert text == svg(sankey.figure, funnel, title="Funnel")
    for name in ("licence", "near_duplicate", "records found", "for training", *funnel["buckets"]):
        assert re.search(rf">[^<]*{name}[^<]*</text>", text), name


def test_nothing_removed_and_nothing_there() -> None:
    row = {"stage": "policy", "documents_in": 0, "documents_out": 0, "removed": 0, "reasons": {}}
    empty = {"buckets": {"web": {"stages": [row]}}, "total": {"stages": [row]}}
    assert sankey.levels(empty) == []
    assert png(sankey.figure, empty).startswith(b"\x89PNG")
