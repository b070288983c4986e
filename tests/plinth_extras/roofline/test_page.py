"""The section about what bounds a step: causes in their order, drawn where the machine was measured."""

from __future__ import annotations

import re

import pytest

from plinth.report import run_page
from plinth.training.telemetry.machine_speed import DeviceSpeed, Roof
from plinth.training.telemetry.step_clock import MeanStep
from plinth_extras.roofline import bottleneck as roofline_section
from plinth_extras.roofline.bottleneck import RunRoofline, StepWork, bottlenecks

ROOF = Roof(flops_per_s=1e10, bytes_per_s=1e9)
WORK = StepWork(flops=3e8, bytes=1e8)


def made(roof: Roof | None = ROOF) -> RunRoofline:
    step = MeanStep(
        steps=(2, 3), seconds={"compute": 0.3, "input": 0.1, "host": 0.0}, wall_s=0.4, device="cpu", precision="fp32"
    )
    device = DeviceSpeed(kind="cpu", name="a <processor>", flops={"fp32": 1e10}, bytes_per_s=1e9) if roof else None
    causes = bottlenecks(step.seconds, WORK, roof)
    return RunRoofline(run="tiny-0123", step=step, work=WORK, roof=roof, device=device, causes=causes)


def test_causes_in_order_with_their_bounds() -> None:
    found = roofline_section.section(made())
    assert found["first"] == "memory"
    assert [(row["cause"], row["width"], row["bound"]) for row in found["rows"]] == [
        ("memory", 75, "at most 4 times as fast"),
        ("input", 25, "at most 1.33 times as fast"),
    ]
    assert [row["seconds"] for row in found["rows"]] == ["0.3 s", "0.1 s"]
    small = bottlenecks({"compute": 1.0, "host": 0.004})[-1]
    assert (small.cause, small.bound) == ("host", "no gain")
    assert "ridge point is at 10 FLOPs per byte. A step has 3 FLOPs per byte and reaches 33.3%" in found["words"]


def test_the_run_lies_below_its_roof() -> None:
    (ax,) = roofline_section.figure(made(), ROOF).axes
    roof, _, gap, point = ax.lines
    low, ridge, high = zip(*roof.get_data(), strict=True)
    assert ridge == pytest.approx((10, 1e10))
    assert low[1] == pytest.approx(low[0] * 1e9)
    assert high[1] == pytest.approx(1e10)
    assert list(zip(*point.get_data(), strict=True)) == [pytest.approx((3, 1e9))]
    assert list(gap.get_ydata()) == pytest.approx([1e9, 3e9])


def test_on_the_page_of_a_run() -> None:
    events = [
        {"event": "run_started", "time": 0.0, "seq": 1, "ranks": 1},
        {"event": "step", "time": 1.0, "seq": 2, "step": 1, "loss": 2.0, "loss_ema": 2.0, "grad_norm": 1.0, "lr": 0.1,
         "tokens": 9, "tokens_per_s": 9.0, "data_wait_s": 0.0, "step_s": 1.0},
    ]  # fmt: skip

    def page(roofline: RunRoofline | None) -> str:
        added = ((roofline_section.SECTION, roofline_section.rendered(roofline) if roofline else ""),)
        return run_page.page(events, run_page.About(run_id="tiny-0123", added=added))

    measured, unmeasured, none = page(made()), page(made(roof=None)), page(None)
    assert "Memory bounds the step" in measured
    assert "a &lt;processor&gt;" in measured
    assert measured == page(made())
    assert len(re.findall("<svg", measured)) == len(re.findall("<svg", unmeasured)) + 1
    assert "was not measured" in unmeasured
    assert 'id="roofline"' not in none
