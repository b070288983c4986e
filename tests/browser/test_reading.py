"""Pages of every kind can be read with weak eyes, with keys alone, and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from plinth.evaluation import statistics
from plinth.evaluation.comparison.differences import Difference
from plinth.records import Manifest
from plinth.report import evaluation, run_page, run_panels
from plinth.report import evaluation as evaluation_page
from plinth.report.page import (
    Fact,
    IndexData,
    PageGroup,
    PageLine,
    ReportData,
    RunLine,
    Standing,
    StateTile,
    index_page,
    page,
)
from plinth_assets.measurements import evaluation_stage
from plinth_ops.gamedays import gameday
from plinth_ops.gamedays import play as gameday_page
from plinth_ops.reviews import postmortem as incident_page
from plinth_ops.reviews import review as period_page
from plinth_registry.consumers import ConsumerRow, VersionRow
from plinth_registry.impact_page import impact_page
from tests import services
from tests.browser import reading
from tests.plinth.report.evaluation.test_page import data as evaluation_data
from tests.plinth.report.evaluation.test_page import row
from tests.plinth.report.run.test_run_page import ABOUT
from tests.registry.canary.test_trial_page import stream, trial
from tests.registry.test_impact_page import arrows, impact

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.needs("Chromium")]
LONG = "a name without a space that is longer than any phone is wide ".replace(" ", "_") * 2


def _index() -> str:
    tiles = tuple(
        StateTile(label=f"Part {name}", value=f"{name} of 12", note=LONG, standing=name, href="x.html")
        for name in get_args(Standing)
    )
    line = RunLine(run=LONG, state="finished", standing="good", steps=12, total_steps=20, href="x.html")
    group = PageGroup(name="Results", pages=(PageLine(title=LONG, href="x.html", written="today"),))
    return index_page(
        IndexData(workspace="w", recipe="tiny", written="today", tiles=tiles, runs=(line,), older_runs=3,
                  groups=(group, PageGroup(name="Canary", command="plinth release canary")))
    )  # fmt: skip


def _impact() -> str:
    return impact_page(
        impact(
            LONG, ("a", "b"), marks=("withdrawn",), gaps=("MLflow does not run",), links=tuple(arrows("a>b")),
            versions=(VersionRow(model="m", version="3", checkpoint="c" * 64, aliases=("champion",)),),
            consumers=(ConsumerRow(name="search", owner="ops@example.org", uses="m@champion"),),
        )
    )  # fmt: skip


def _incident() -> str:
    rows = (("2026-01-01 10:00", "ada@example.org", LONG),)
    table = incident_page.FactTable(title="Timeline", source="incidents", columns=("at", "who", "what"), rows=rows)
    empty = incident_page.FactTable(title="Alerts", source="alerts.jsonl", columns=("at",))
    return incident_page.page(
        incident_page.IncidentData(number=1, title="loss diverges", state="open", tables=(table, empty), gaps=(LONG,))
    )


def _gameday() -> str:
    texts = ("name", "hypothesis", "fault", "blast_radius", "abort", "protection", "mechanism", "machine", "version")
    seen = [gameday.Outcome(what="weights", passed=passed, seen=LONG) for passed in (True, False)]
    instants = (
        gameday.Instant(number=0, struck="at step 3", findings=(seen[0],), alert_s=2.0),
        gameday.Instant(number=1, struck=LONG, findings=(seen[1],)),
    )
    record = gameday.GameDayRecord(
        **dict.fromkeys(texts, "text of it"), alerts=("JobFailed",), seed=1, instants=instants,
        phases={"detect": 1.0}, seconds=9.0,
    )  # fmt: skip
    return gameday_page.page(record, "record 1")


def _review() -> str:
    kinds = ((True, "all well"), (False, "2 failed"), (None, "nothing"))
    found = tuple(
        period_page.PeriodSection(
            title=f"Part {word}", good=good, verdict=word, lead="jobs", columns=("job", "n"),
            rows=((LONG, "3"),) * (period_page.ROWS + 4), numbers=(1,),
        )
        for good, word in kinds
    )  # fmt: skip
    facts = (Fact(label="jobs", value="12", note="2 failed"),)
    return period_page.page(period_page.PeriodData(title="Week 3", subtitle="as it was", facts=facts, sections=found))


def _evaluation() -> str:
    stats = {
        "overall": row(2.1), "slices": {"web": row(2.0), "code": row(2.2)},
        "axes": {"language": {"en": row(), "de": row(2.5)}},
        "protected": {"quiz": {"clean": row() | {"items": 7}, "contaminated": row(1.2) | {"items": 3}}},
    }  # fmt: skip
    return evaluation_page.page(evaluation_data(evaluation_stage.section("", stats)))


def _comparison() -> str:
    def line(measure: str, label: str, kind: str = "slices") -> dict[str, Any]:
        one = statistics.mean([2.0, 2.1, 2.3, 2.2]).model_dump(mode="json")
        gap = statistics.mean([0.01, 0.02, -0.01, 0.0]).model_dump(mode="json")
        return Difference(
            kind=kind, measure=measure, slice=label, a=one, b=one, difference=gap, fewer_is_better=True,
            adjusted=0.4, better="", smallest=0.1,
        ).model_dump(mode="json")  # fmt: skip

    model = {"checkpoint": "ab" * 32, "asset": "checkpoint", "run_id": LONG, "step": 600, "tokens": 10**6}
    item = {"item": "ab" * 16, "source": LONG, "slices": ["bucket web"], "a": 2.0, "b": 1.0, "gain": 1.0}
    stats = {
        "lines": [line("bits per byte", "all"), line("bits per byte", "bucket web"), line(LONG, "all", "probes")],
        "models": {"a": model, "b": model}, "same_tokenizer": True, "reasons": [], "seen": [], "seen_items": 0,
        "extremes": [{"kind": "slices", "measure": "bits per byte", "a": [item], "b": []}],
        "changes": [{"sort": "parameter", "where": LONG, "a": "1", "b": "2"}],
        "left_out": 0, "unpaired": {}, "seed": 0, "measured_alone": {"a": [], "b": []},
    }  # fmt: skip
    inputs = {"a/checkpoint": "a" * 64, "b/checkpoint": "b" * 64}
    made = Manifest(asset="comparison", step="c", version="1", params={}, inputs=inputs, parts=(), stats=stats)
    return evaluation.comparison_page(made, "demo (checkpoint abababababab)", "champion (checkpoint cdcdcdcdcdcd)")


@pytest.fixture(scope="module")
def screen() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=services.program(*services.CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser.new_page()
        browser.close()


@pytest.fixture
def pages(data: ReportData, timeline: list[dict[str, Any]], shown: str) -> dict[str, str]:
    """A page of each kind, from records: no pipeline is run for them."""
    return {
        "index": _index(),
        "results": page(data),
        "evaluation": _evaluation(),
        "canary": trial(stream(), stream(LONG), small=("probe x (9)",), missing="a reason"),
        "experiment": shown,
        "review": _review(),
        "incident": _incident(),
        "gameday": _gameday(),
        "impact": _impact(),
        "run": run_page.page(timeline, ABOUT),
        "comparison": _comparison(),
    }


def test_pages_of_every_kind_can_be_read_by_everybody(screen: Any, pages: dict[str, str], tmp_path: Path) -> None:
    found = {}
    for name, text in pages.items():
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        screen.goto(path.as_uri())
        found[name] = reading.faults(screen)
    assert {name: own for name, own in found.items() if own} == {}


def test_curves_show_values_at_the_pointer_zoom_in_and_reset(
    screen: Any, timeline: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "run.html"
    path.write_text(run_page.page(timeline, ABOUT), encoding="utf-8")
    screen.set_viewport_size(reading.SCREEN)
    screen.goto(path.as_uri())
    screen.check("#by-step")
    curve = screen.locator('.step svg[data-key="loss"]')
    curve.scroll_into_view_if_needed()
    left, top, width, height = (curve.bounding_box()[name] for name in ("x", "y", "width", "height"))

    def point(step: float) -> tuple[float, float]:
        inside = run_panels.LEFT + run_panels.INNER * step / 10
        return left + width * inside / run_panels.WIDTH, top + height / 2

    def ticks() -> list[str]:
        return [
            text for text in screen.locator('.step svg[data-key="ruler"] text').all_text_contents() if text[0].isdigit()
        ]

    screen.mouse.move(*point(7.1))
    shown = screen.locator(".readout").inner_text().splitlines()
    assert shown == ["step 7", "loss, nats per token", "each step 9", "smoothed 9"]
    assert screen.locator('.step [data-line="rate"]').inner_text() == "0.1"  # the other panels follow
    assert ticks()[0] == "0"
    screen.mouse.down()
    screen.mouse.move(*point(10), steps=3)
    screen.mouse.up()
    assert {int(tick) for tick in ticks()} <= {7, 8, 9, 10}
    screen.mouse.move(*point(0.1))
    assert screen.locator(".readout").inner_text().startswith("step 7\n")
    screen.mouse.dblclick(*point(5))
    assert ticks()[0] == "0"
