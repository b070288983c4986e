"""Plots draw what they are given, and the same bytes every time."""

import io
import struct
from collections.abc import Callable
from typing import Any

import pytest

from plinth.report import figures
from plinth.report.page import RunCard
from plinth.report.style import png, svg

COURSE = [
    {"first": 0, "stop": 40, "phase": "a", "asked": {"x": 0.8, "y": 0.2}, "realised": {"x": 0.79, "y": 0.21}},
    {"first": 40, "stop": 100, "phase": "b", "asked": {"x": 0.1, "y": 0.9}, "realised": {"x": 0.1, "y": 0.9}},
]


def width(data: bytes) -> int:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int(struct.unpack(">I", data[16:20])[0])


def test_every_plot_is_a_small_png_and_repeats(
    funnel: dict[str, Any], mixture: tuple[dict[str, Any], ...], slices: dict[str, dict[str, Any]], run: RunCard
) -> None:
    draws: list[Callable[[], bytes]] = [
        lambda: png(figures.funnel, funnel),
        lambda: png(figures.mixture, mixture),
        lambda: png(figures.mixture_shares, COURSE, 512),
        lambda: png(figures.loss, run.steps, run.events),
        lambda: png(figures.bits_per_byte, slices),
    ]
    for draw in draws:
        data = draw()
        assert 700 < width(data) < 1100
        assert len(data) < 120_000
        assert draw() == data


def test_svg_follows_the_page_and_names_itself(slices: dict[str, dict[str, Any]]) -> None:
    text = svg(figures.bits_per_byte, slices, title='model "x" < gzip')
    assert text.startswith("<svg")
    assert text.endswith("</svg>")
    assert "currentColor" in text
    assert 'aria-label="model &quot;x&quot; &lt; gzip"' in text
    assert "#010203" not in text
    assert all(f">{name}<" in text for name in slices)
    assert "1.52" in text
    assert svg(figures.bits_per_byte, slices, title='model "x" < gzip') == text


def test_funnel_shows_what_is_left_after_each_stage(funnel: dict[str, Any]) -> None:
    text = svg(figures.funnel, funnel, title="t")
    total = funnel["total"]["stages"]
    for row in total:
        assert f"{row['documents_out']:,}" in text or row["documents_out"] >= 10_000
    assert "records found" in text
    for stage in total:
        stage["removed"] = 0 if stage["stage"] == "documents" else stage["removed"]
    assert "records found" not in svg(figures.funnel, funnel, title="t")


def test_loss_marks_interventions(run: RunCard) -> None:
    assert ">restart" in svg(figures.loss, run.steps, run.events, title="t").replace("> ", ">")
    assert ">restart" not in svg(figures.loss, run.steps, (), title="t").replace("> ", ">")


def test_a_loss_that_is_no_number_leaves_a_gap() -> None:
    """The timeline writes such values as text."""
    steps = [{"step": i, "loss": "nan" if i == 3 else 2.0, "lr": 1e-3} for i in range(1, 9)]
    assert width(png(figures.loss, steps)) > 700


def test_moving_mean_of_a_constant_is_that_constant() -> None:
    assert figures._moving([2.5] * 100) == pytest.approx([2.5] * 100)
    assert figures._moving([]) == []
    assert figures._moving([2.0, float("inf"), 2.0])[2] == pytest.approx(2.0)


@pytest.mark.parametrize("steps", [[], [{"step": 1, "loss": 2.0}], [{"step": 1, "loss": 2.0, "lr": 0.0}]])
def test_a_short_run_still_draws(steps: list[dict[str, Any]]) -> None:
    assert width(png(figures.loss, steps)) > 700


def test_an_empty_bucket_still_draws(funnel: dict[str, Any]) -> None:
    for account in (*funnel["buckets"].values(), funnel["total"]):
        for row in account["stages"]:
            row |= {"documents_in": 0, "documents_out": 0, "removed": 0}
    assert io.BytesIO(png(figures.funnel, funnel)).read(4) == b"\x89PNG"
