"""The page of a run: its times and losses follow from the timeline, and the same timeline gives the same bytes."""

from __future__ import annotations

import html
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.report import run_metrics as metrics
from plinth.report import run_page
from plinth.report import run_panels as panels
from plinth.report import run_sections as sections
from plinth.report.run_metrics import Series, run_metrics
from plinth.report.run_panels import Panel, PanelLine, TimeAxis
from plinth.report.run_sections import interventions
from plinth.training.attempts import AttemptRecord, ContinuedState
from plinth.training.telemetry.goodput_account import account
from tests.training_host import HOST


class History:
    """A timeline written by hand; a step takes a second, of which a tenth waits for data."""

    def __init__(self) -> None:
        self.now, self.events = 1000.0, list[dict[str, Any]]()

    def add(self, event: str, after: float = 0.0, **fields: Any) -> None:
        self.now += after
        self.events.append({"seq": len(self.events) + 1, "time": self.now, "event": event, **fields})

    def step(self, step: int, loss: float = 2.0, **fields: Any) -> None:
        measured = {"loss": loss, "loss_ema": loss, "grad_norm": 1.0, "lr": 0.1, "tokens": 100 * step}
        speed = {"tokens_per_s": 100.0, "data_wait_s": 0.1, "step_s": 1.0, "memory_bytes": 10**6}
        self.add("step", 1.0, step=step, **measured, **speed, **fields)


def look(score: float, control: float = 1.5, **fields: Any) -> dict[str, Any]:
    """The fields of an event with one probe."""
    return {"probes": {"maths": {"score": score, "control": control, "items": 40, **fields}}, "probe_set": "a"}


@pytest.fixture
def timeline() -> list[dict[str, Any]]:
    """Ten steps: a commit after 4, a kill after 6, a rollback from 8 to 4 that leaves out 7 and 8, the end."""
    story = History()
    story.add("submitted", launcher="slurm")
    story.add("job_started", 30.0, ranks=2, nodes=1)
    story.add("run_started", 8.0, attempt=0, ranks=2, device="cpu", precision="fp32")
    for step in range(1, 5):
        story.step(step, layers={"names": ["embedding", "0"], "grad_norm": [0.5, None]})
    story.add("checkpoint", 0.5, step=4, bytes=9, seconds=0.5)
    story.add("evaluated", step=4, tokens=400, slices={"web": 1.5}, **look(0.4))
    for step in (5, 6):
        story.step(step)
    story.add("restart", 3.0, attempt=1, reason="rank 1 was killed by <SIGKILL>", lost_steps=2)
    story.add("run_started", 2.0, attempt=1, ranks=2)
    story.add("resumed", 3.0, step=4)
    for step in (5, 6, 7, 8):
        story.step(step, loss=9.0 if step > 6 else 2.0)
    window = {"rule": "loss_spike", "action": "rollback", "window": [7, 8], "number": 1}
    story.add("intervention", step=8, value=9.0, threshold=4.0, **window)
    stood_out = {"bucket": "web", "source": "bad.example", "documents": 3, "share": 0.75, "share_before": 0.0}
    usual = {"bucket": "web", "source": "good.example", "documents": 1, "share": 0.25, "share_before": 1.0}
    named = [{"step": 7, "id": "ab" * 16, "bucket": "web", "source": "bad.example", "uri": "https://bad.example/1"}]
    found = {"sources": [stood_out, usual], "buckets": {"web": 4}, "documents_count": 4, "documents": named}
    story.add("documents", **window, **found)
    story.add("rolled_back", step=4, undone=4, number=1)
    story.step(5)
    story.step(6)
    for step in (7, 8):
        story.add("skipped", step=step, rule="loss_spike", window=[7, 8])
    story.step(9)
    story.step(10)
    story.add("finished", step=10)
    return story.events


ABOUT = run_page.About(
    run_id="tiny-0123",
    ranks=2,
    total_steps=10,
    total_tokens=1000,
    flops_per_token=((1, 1e6), (9, 2e6)),
    price_per_rank_hour=3600.0,
    sequence_tokens=10,
    mixture=(
        {"first": 0, "stop": 50, "phase": "a", "realised": {"web": 1.0, "code": 0.0}},
        {"first": 50, "stop": 100, "phase": "a", "realised": {"web": 0.5, "code": 0.5}},
    ),
)


def test_where_the_time_went(timeline: list[dict[str, Any]]) -> None:
    cost = run_metrics(timeline).cost
    # Trained: 4 + 2 + 4 + 2 + 2 steps; counted: 1-6, 9, 10; lost: 5, 6 by the kill, 5, 6, 7, 8 by the rollback.
    assert (cost.lost_steps, cost.skipped_steps, cost.restarts, cost.interventions) == (6, 2, 1, 1)
    ledger = account(timeline)
    assert ledger.held_rank_s == pytest.approx(2 * ledger.held_s) == pytest.approx(2 * 30.5)
    assert ledger.total_rank_s - ledger.held_rank_s == pytest.approx(2 * 30)
    assert cost.tokens == 1000


def test_age_of_the_checkpoint_is_a_saw(timeline: list[dict[str, Any]]) -> None:
    age = run_metrics(timeline).series["checkpoint_age_s"]
    by_time = list(zip(age.times, age.values, strict=True))
    assert by_time[:6] == [(1039.0, 1.0), (1040.0, 2.0), (1041.0, 3.0), (1042.0, 4.0), (1042.5, 4.5), (1042.5, 0.0)]


def test_series_of_every_kind(timeline: list[dict[str, Any]]) -> None:
    made = run_metrics(timeline)
    assert made.slices["web"].values == [1.5]
    assert (made.probes["maths"].values, made.controls["maths"].values) == ([0.4], [1.5])
    assert math.isnan(made.layers["0"].values[0])
    assert [mark.kind for mark in made.marks] == ["restart", "resumed", "intervention", "rolled_back", "finished"]
    assert made.marks[0].step == 6


def test_experts_are_drawn_if_there_are_any(timeline: list[dict[str, Any]]) -> None:
    health = {"most": 1.5, "idle": 2, "entropy": 1.25, "by_layer": {"layers": [1, 3], "most": [1.5, 1.2]}}
    mixed = [event | ({"experts": health} if event["event"] == "step" else {}) for event in timeline]
    made = run_metrics(mixed)
    assert set(made.series["experts_idle"].values) >= {2.0}
    assert {layer: max(one.values[:1]) for layer, one in made.experts.items()} == {"1": 1.5, "3": 1.2}
    text = run_page.page(mixed, ABOUT)
    for key in ("experts", "experts_load", "experts_idle", "experts_entropy"):
        assert len(re.findall(f'data-key="{key}"', text)) == 2, key
    assert "experts" not in run_page.page(timeline, ABOUT)


class Reader(HTMLParser):
    """Parser for the resources of a page and its unclosed elements."""

    VOID = frozenset({"meta", "br", "line", "path", "rect", "circle", "input", "link", "img", "use"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.loaded += [value for name, value in attrs if name == "src" or (name == "href" and tag != "a")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_says_everything(timeline: list[dict[str, Any]]) -> None:
    text = run_page.page(timeline, ABOUT)
    reader = Reader(text)
    assert reader.open == []
    assert reader.loaded == []
    addresses = re.findall(r"""(?<!xmlns=")(?<!xmlns:xlink=")http""", text)
    assert len(addresses) == 1  # the address of a document, as text
    assert "&lt;SIGKILL&gt;" in text
    assert "<SIGKILL>" not in text
    for words in (
        "loss_spike",
        "7–8",
        "bad.example (web) 75% of the tokens, 0% before; 4 documents, such as https://bad.example/1",
        "61.00 USD",
        "23.6%",
        "plinth run blame tiny-0123 7",
    ):
        assert words in text, words
    for key in (
        "loss",
        "slices",
        "probes",
        "grad_norm",
        "lr",
        "tokens_per_s",
        "mfu",
        "wait",
        "memory",
        "age",
        "layers",
        "mixture",
    ):
        assert len(re.findall(f'data-key="{key}"', text)) == 2, key
    assert run_page.page(timeline, ABOUT) == text


def test_a_page_begins_with_its_verdict_and_its_contents(timeline: list[dict[str, Any]]) -> None:
    text = run_page.page(timeline, ABOUT)
    assert "Finished at step 10 of 10, loss 2.000; 1 restart, 1 intervention." in text
    for link in re.findall(r'<a href="#([^"]+)"', text):
        assert f'id="{link}"' in text
    under_way = run_page.page(timeline[:12], ABOUT)
    assert "Not ended yet, at step 6 of 10" in under_way


def test_events_are_sentences_and_not_values_of_a_program() -> None:
    passed = {"node": 0, "host": "one", "disk": "pass", "gpu": "not applicable"}
    failed = passed | {"node": 1, "host": "two", "disk": "fail", "clock": "undetermined"}
    said = metrics.words({"event": "hosts_checked", "hosts": [passed, failed], "seconds": 0.1})
    assert said == "hosts 1 of 2 passed all checks; node 1 (two): disk fail, clock undetermined, seconds 0.1"
    said = metrics.words({"event": "finished", "bit_exact": True, "nodes": [1, 2], "lost_s": 0.0, "reason": None})
    assert said == "bit exact yes, nodes 1, 2, lost seconds 0"
    resumed = {"event": "audited", "bit_exact": True, "from_step": 392, "compared_steps": 8, "delta": 0.0}
    assert metrics.words(resumed) == "resumed from step 392 and compared 8 steps: bit-identical"
    differs = metrics.words(resumed | {"bit_exact": False, "delta": 0.0123})
    assert differs.endswith("not bit-identical, losses differ by up to 0.012 (relative)")


def curves(text: str, key: str) -> list[list[dict[str, Any]]]:
    """Curves of a panel for the script: by time, by step."""
    found = re.findall(rf'data-key="{key}"[^>]* data-curves="([^"]+)"', text)
    return [json.loads(html.unescape(one)) for one in found]


def test_the_pointers_values_are_those_of_the_timeline(timeline: list[dict[str, Any]]) -> None:
    text = run_page.page(timeline, ABOUT)
    (frame,) = curves(text, "loss")[1]
    by_step = frame["lines"][0]
    assert (by_step["name"], frame["x"], frame["y"]) == ("each step", "step", "loss, nats per token")
    assert len(by_step["x"]) == 10 - 0  # steps 1 to 10, one column each
    assert by_step["y"][6:8] == ["9", "9"]
    utilised = run_page.page(timeline, ABOUT.model_copy(update={"peak_flops": 1e9}))
    assert "5%" in curves(utilised, "mfu")[0][0]["lines"][0]["y"]


def test_work_on_other_ranks_and_rows_is_counted_as_it_was() -> None:
    story = History()
    story.add("job_started", ranks=2, nodes=1)
    story.add("run_started", attempt=0, ranks=2)
    story.step(1)
    story.add("stopped", step=1)
    story.add("submitted", 3000.0, launcher="local")
    story.add("job_started", 600.0, ranks=1, nodes=1)
    story.add("run_started", attempt=0, ranks=1)
    story.add("reshaped", step=1, **{"from": {"ranks": 2, "zero": 1}, "to": {"ranks": 1, "zero": 1}})
    story.step(2)
    story.step(3, vetoed=True)
    # this job is killed, and the next begins a minute later
    story.add("vanished", 60.0, from_step=3, lost_steps=0, lost_s=0.0)
    story.add("job_started", 5.0, ranks=4, nodes=2)
    story.add("run_started", attempt=0, ranks=4)
    story.step(4)
    story.add("finished", step=4)
    timeline = run_metrics(story.events)
    cost = timeline.cost
    assert (cost.jobs, cost.skipped_steps, cost.lost_steps) == (3, 1, 1)
    assert account(story.events).held_rank_s == pytest.approx(2 * 1 + 1 * 2 + 4 * 1)
    about = ABOUT.model_copy(update={"flops_per_token": ((1, 1e6), (3, 2e6))})
    flops = run_page._flops(timeline, about).values  # with a gap before each job but the first
    expected = [100 * 1e6 / 2, math.nan, 100 * 1e6, 100 * 2e6, math.nan, 100 * 2e6 / 4]
    assert flops == pytest.approx(expected, nan_ok=True)
    assert "ranks 2 → 1" in run_page.page(story.events, about)
    assert "zero" not in next(mark.text for mark in timeline.marks if mark.kind == "reshaped")


def test_acts_that_follow_each_other_are_one_row() -> None:
    acts = [
        {"event": "intervention", "step": 5, "rule": "loss_spike", "action": "warn", "window": [5, 5], "number": 1},
        {"event": "intervention", "step": 5, "rule": "loss_spike", "action": "rollback", "window": [4, 5], "number": 1},
        *(
            {"event": "intervention", "step": n, "rule": "loss_spike", "action": "skip", "window": [n, n], "number": n}
            for n in (6, 7, 8)
        ),
        {"event": "documents", "rule": "loss_spike", "action": "skip", "window": [7, 7], "number": 7, "unknown": "why"},
    ]
    rows = interventions([{"value": 9.0, "threshold": 4.0, **act} for act in acts])
    assert [(row["action"], row["step"], row["window"]) for row in rows] == [
        ("warn", "5", "5"), ("rollback", "5", "4–5"), ("skip", "6–8", "6–8")
    ]  # fmt: skip
    assert [row["documents"] for row in rows] == ["", "", "why"]


def test_attempts_have_their_machines_and_proofs(timeline: list[dict[str, Any]]) -> None:
    def attempt(number: int, **fields: Any) -> AttemptRecord:
        given = {"run": "tiny-0123", "key": "k", "config_sha256": "c", "from_step": 4, "ranks": 2, "nodes": 1}
        return AttemptRecord(**given, number=number, hosts=[HOST], at="2026-11-30T11:42:00+00:00", **fields)

    state = ContinuedState(lost="rank 1", step=4, source="memory", copies_sha256="cd" * 32, restored_sha256="cd" * 32)
    records = (attempt(1, contract="ab" * 32), attempt(2, continuation=state), attempt(3, audit=True))
    events = [*timeline[:4], {**timeline[3], "event": "replay_checked", "samples": 1}, *timeline[4:]]
    events = [{**event, "attempt": event["attempt"] + 1} if "attempt" in event else event for event in events]
    assert [(row["number"], row["at"], row["place"], row["proofs"]) for row in sections.attempts(events, records)] == [
        (1, "2026-11-30 11:42:00", "2 ranks on node-1", f"contract {'ab' * 6}; by the timeline, 1 sampled step "
         "replayed with equal results"),
        (2, "2026-11-30 11:42:00", "2 ranks on node-1", f"continued after step 4 from equal copies in memory "
         f"({'cd' * 6}) (rank 1)"),
        (3, "2026-11-30 11:42:00", "2 ranks on node-1", "replay of the last steps"),
    ]  # fmt: skip
    assert "The trainer signed 3 attempts" in run_page.page(events, ABOUT.model_copy(update={"attempts": records}))
    unproved = run_page.page(events, ABOUT.model_copy(update={"unproved": "The attempts are not proved: <b>"}))
    assert "<h2>The attempts are not proved: &lt;b&gt;</h2>" in unproved
    assert 'id="attempts"' not in run_page.page(events, ABOUT)


@pytest.mark.parametrize("keep", [1, 2, 6])
def test_a_run_that_has_hardly_begun(timeline: list[dict[str, Any]], keep: int) -> None:
    assert Reader(run_page.page(timeline[:keep], ABOUT)).open == []


def test_no_spike_is_averaged_away() -> None:
    series = Series()
    for step in range(50_000):
        series.add({"time": float(step), "step": step}, 100.0 if step == 31_007 else 1.0)
    series.add({"time": 50_000.0, "step": 50_000}, "inf")
    made = metrics.RunMetrics({"loss": series}, {}, {}, [], metrics.cost([]), [], 0.0, 50_000.0, 50_000)
    panel = Panel("loss", "loss", [PanelLine("x", series)], str)
    (found,) = curves(panels.draw(panel, TimeAxis("step", made), ()), "loss")[0][0]["lines"]
    assert len(found["x"]) <= panels.COLUMNS + 1
    assert found["y"].count("100.0") == 1


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from([math.nan, math.inf, -1.0, 0.0, 2.5, 7.0])), max_size=60),
    st.integers(1, 9),
)
def test_columns_hold_the_range_of_their_steps(rows: list[tuple[int, float]], columns: int) -> None:
    """Steps may decrease; the position of a column is that of its first step."""
    series = Series([0.0] * len(rows), [step for step, _ in rows], [value for _, value in rows])
    scale = TimeAxis("step", metrics.RunMetrics({}, {}, {}, [], metrics.cost([]), [], 0.0, 0.0, 40))
    found = panels._columns(scale, series, columns)
    expected: dict[int, list[tuple[float, float]]] = {}
    for step, value in rows:
        place = scale.at(float(step))
        expected.setdefault(int((place - panels.LEFT) * columns / panels.INNER), []).append((place, value))
    assert len(found) == len(expected)
    for column, (_, inside) in zip(found, sorted(expected.items()), strict=True):
        finite = [value for _, value in inside if math.isfinite(value)]
        range_ = (min(finite), max(finite)) if finite else (math.nan, math.nan)
        assert column == pytest.approx((inside[0][0], *range_), nan_ok=True)


@pytest.mark.parametrize(
    ("values", "zero", "log", "ticks"),
    [
        ([0.0, 10.0], False, False, [0, 5, 10]),
        ([8.0, 10.0], True, False, [0, 5, 10]),
        ([0.5, math.nan, 90.0], False, True, [1, 10, 100]),
        ([0.9, 6.0], False, True, [1, 2, 5]),
        ([1.1, 1.4], False, True, [1.2, 1.4]),
        ([3.0], False, True, [1, 10]),
        ([3.0], False, False, [2.9, 3.0, 3.1]),
        ([0.0], True, False, [0, 0.02, 0.04]),
    ],
)
def test_an_axis_has_round_ticks_and_room_for_all_values(
    values: list[float], zero: bool, log: bool, ticks: list[float]
) -> None:
    panel = Panel("x", "x", [], str, log=log, zero=zero, height=112)
    found, place = panels._vertical(panel, np.array(values))
    assert found == pytest.approx(ticks)
    places = place(np.array([value for value in values if math.isfinite(value)]))
    assert ((places > panels.TOP) & (places <= 112 - panels.BOTTOM)).all()
    if values == [8.0, 10.0]:
        assert place(np.array([0.0, 10.5])) == pytest.approx([106, 6])  # the margin of 5% is above


def test_a_heat_map_is_a_path_per_shade() -> None:
    steps = list(range(900))
    rows = {f"{n}": Series([0.0] * 900, steps, [1.0 + n * step for step in steps]) for n in range(2)}
    scale = TimeAxis("step", metrics.RunMetrics({}, {}, {}, [], metrics.cost([]), [], 0.0, 0.0, 900))
    drawn = panels.heat(rows, scale, [], "layers")
    assert 2 < drawn.count("<path") <= panels.TONES + 2


def test_probes_are_shown_with_their_noise_and_what_they_may_decide() -> None:
    story = History()
    story.add("job_started", ranks=1, nodes=1)
    story.add("run_started", attempt=0, ranks=1)
    for step, score in enumerate((1.0, 0.9, 0.85, 0.75, 0.7), 1):
        story.step(step)
        spent = {"seconds": 0.5, "probe_seconds": 0.25}
        story.add("evaluated", step=step, tokens=100 * step, slices={}, **spent, **look(score, accuracy=0.25))
    story.add("finished", step=5)
    measured = run_metrics(story.events)
    (row,) = sections.rows(measured, {})
    # by hand: the line falls by 0.075 a look from 0.99, its residuals are 0.01, -0.015, 0.01, -0.015, 0.01
    noise = math.sqrt((3 * 0.01**2 + 2 * 0.015**2) / 3)
    assert (row["score"], row["control"], row["signal"], row["accuracy"]) == ("0.7", "1.5", "0.8", "25%")
    assert row["noise"] == f"{noise:.4g} over 5 evaluations"
    assert row["ratio"] == f"{0.8 / noise:.3g}"
    assert row["words"] == "signal above noise"
    (seeded,) = sections.rows(measured, {"maths": (0.7, 2.9)})
    assert (seeded["noise"], seeded["weight"]) == ("1.556 over 2 seeds", "soft")
    assert seeded["words"].startswith("signal within its noise")
    for more, words in (({"control": 0.5}, "no signal"), ({"probe_set": "b"}, "unknown noise")):
        last = {**story.events[-2], "step": 6, "seq": 99, **look(0.7, control=more.get("control", 1.5)), **more}
        (other,) = sections.rows(run_metrics([*story.events, last]), {})
        assert other["words"].startswith(words)
    line, control = sections.panel(measured, {}).lines
    assert line.band == pytest.approx(noise)
    assert (control.faint, control.band) == (True, 0.0)
    assert "5 probe evaluations took 1.25 s, 25% of the run" in sections.share(measured)
    text = run_page.page(story.events, ABOUT.model_copy(update={"over_seeds": {"maths": (0.7, 2.9)}}))
    assert "1.556 over 2 seeds" in text
    assert 'id="probes"' not in run_page.page(story.events[:3], ABOUT)


def test_a_band_lies_about_its_line() -> None:
    story = History()
    for step in (1, 2, 3):
        story.step(step)
    scale = TimeAxis("step", run_metrics(story.events))
    series = Series([1.0, 2.0, 3.0], [1, 2, 3], [1.0, math.nan, 3.0])
    plain, banded = (
        panels.draw(Panel("p", "p", [PanelLine("a", series, band=band)], str, height=100), scale, ())
        for band in (0.0, 1.0)
    )
    assert "fill: #0072b2" not in plain
    corners = re.search(r'd="(M[^"]*)"[^>]*fill: #0072b2', banded)
    assert corners is not None
    places = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", corners[1])]
    # from 0 to 2 at the first and from 2 to 4 at the last; a gap is left out; 4.4 units with margins are 88 high
    assert places == pytest.approx([90, 50, 10, 50])


def test_parts_of_a_step_and_the_devices_are_drawn() -> None:
    """Two steps of which a quarter and three quarters were communication; a page of an old timeline has no parts."""
    story = History()
    story.add("run_started", ranks=2)
    for step, waited in ((1, 0.25), (2, 0.75)):
        story.step(step, parts={"forward": 1 - waited, "communication": waited}, device_memory={"peak": 2**30})
        gpus = [{"gpu": 0, "utilisation": 90, "power_w": None}, {"gpu": 1, "utilisation": 50, "power_w": 600.0}]
        story.add("devices", node=0, gpus=gpus)
    measured = run_metrics(story.events)
    found = sections.stretches(measured, TimeAxis("step", measured))
    assert [row["realised"]["communication"] for row, _ in found] == [0.25, 0.75]
    assert all(panels.LEFT <= left < right <= panels.LEFT + panels.INNER for _, (left, right) in found)
    assert all(sum(row["realised"].values()) == 1.0 for row, _ in found)
    assert measured.series["device_peak_bytes"].values == [2**30] * 2
    assert (measured.series["gpu_utilisation"].values, measured.series["gpu_power_w"].values) == ([70] * 2, [600] * 2)
    assert measured.series["data_wait_share"].values == [0.0, 0.0]  # by the device, whatever the host waited
    page = run_page.page(story.events, ABOUT)
    assert "parts of a step" in page
    assert "memory of the leading rank's device" in page.replace("&#39;", "'")


def test_a_timeline_without_parts_has_no_panel_of_them(timeline: list[dict[str, Any]]) -> None:
    measured = run_metrics(timeline)
    assert sections.stretches(measured, TimeAxis("step", measured)) == []
    assert measured.series["host_memory_bytes"].values[0] == 10**6
    assert "parts of a step" not in run_page.page(timeline, ABOUT)
