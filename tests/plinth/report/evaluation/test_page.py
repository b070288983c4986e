"""The page of an evaluation: it shows all measurements, and no name is executed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from plinth.evaluation import statistics
from plinth.evaluation.probes import noise
from plinth.report import evaluation as sections
from plinth.report.evaluation import CurveGroup, EvaluationData, MeasureGroup, Section, StepCurve, page
from plinth_assets.measurements import evaluation_stage, probes_stage, serving_stage
from plinth_audit.canaries import job as canaries

HOSTILE = '<script>alert("1")</script>'


def row(model: float = 2.0, **more: Any) -> dict[str, Any]:
    return {"bytes": 1000, "documents": 12, "n": 12, "model": model, "low": model - 0.1, "high": model + 0.1, "seed": 0,
            "gzip": 3.0, "trigram": 3.5} | more  # fmt: skip


def data(*found: Section) -> EvaluationData:
    return EvaluationData(title="demo: evaluation", sections=found)


class Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_every_slice_stands_on_the_page_with_its_interval() -> None:
    stats = {
        "overall": row(2.1),
        "slices": {"web": row(2.0), "code": row(2.2)},
        "axes": {"language": {"en": row(), "de": row(2.5)}, "domain": {"one.example": row()}},
        "protected": {"quiz": {"clean": row() | {"items": 7}, "contaminated": row(1.2) | {"items": 3}}},
    }
    found = evaluation_stage.section("", stats)
    assert [group.title for group in found.groups] == ["bits per byte: all held-out text, by bucket", "by language"]
    shown = Parsed(page(data(found)))
    for words in ("web", "code", "de", "2.4 to 2.6", "contaminated", "1.100 to 1.300"):
        assert words in shown.words
    assert shown.tags.count("svg") == 2


def test_names_are_text() -> None:
    group = MeasureGroup(
        title=HOSTILE, unit=HOSTILE, better="lower", measures=(sections.measure(HOSTILE, row(), "model"),)
    )
    curves = CurveGroup(title=HOSTILE, unit="bits", curves=(StepCurve(name=HOSTILE, steps=(1, 2), values=(2.0, 1.0)),))
    text = page(data(Section(key="x", title=HOSTILE, lead=HOSTILE, groups=(group,), curves=(curves,))))
    assert "script" not in Parsed(text).tags
    assert not re.search(r"(src|href)=\"(?!#)", text)  # nothing is loaded


def test_same_data_same_bytes() -> None:
    found = evaluation_stage.section("", {"overall": row(), "slices": {"web": row()}, "axes": {}})
    assert page(data(found)) == page(data(found))


def test_flags_of_an_estimate_are_said() -> None:
    found = statistics.mean([1.0, 1.0, 1.0])
    one = sections.measure("all alike", found.model_dump())
    assert one.note == "degenerate, few_clusters"
    group = MeasureGroup(title="x", unit="share", better="higher", measures=(one,))
    assert "degenerate" in page(data(Section(key="x", title="x", lead="", groups=(group,))))


def test_groups_of_canaries_stand_by_repetitions_and_a_device_that_is_too_small_is_said() -> None:
    group = {"canaries": 5, "exposure": statistics.mean([1.0, 2.0, 3.0, 4.0, 5.0]).model_dump()}
    stats = {"groups": {"1": group, "16": group, "4": group}, "out": {"canaries": 0}, "planted": 15, "references": 4096}
    stats |= {"p_value": 0.5, "audit": {"right": 1, "guesses": 2, "epsilon": 0.0}}
    section = canaries.section("", stats)
    assert "p-value under no memorization, over all planted canaries: 0.5." in section.lead
    assert "p-value under no memorization, canaries planted 4 times: 0.023;" in section.lead
    assert "Membership inference: 1/2 guesses correct" in section.lead
    (shown,) = section.groups
    assert [one.name for one in shown.measures] == ["1 time", "4 times", "16 times"]
    none = dict.fromkeys(("first_token_s", "tokens_per_s", "tokens_per_s_full"))
    serving = serving_stage.section("", {"kv_bytes_per_token": 2048, "devices": {"l4": none | {"sequences": 0}}})
    assert serving.tables[0].rows == (("l4", "does not fit", "does not fit", "0", "does not fit"),)


def test_a_probe_decides_only_above_a_noise_that_is_known() -> None:
    found = statistics.mean([1.0, 2.0, 3.0]).model_dump()
    row = {"bits_per_byte": found, "control": found, "signal": found, "statuses": {"clean": 3}, "too_long": 0}
    section = probes_stage.section("", {"probes": dict.fromkeys(("loud", "quiet", "unknown"), row), "families": {}})
    worth = {"loud": noise.worth(1.0, [1.0, 1.1, 1.0]), "quiet": noise.worth(0.01, [1.0, 1.1, 1.0])}
    judged = probes_stage.with_worth(section, worth)
    (group,) = judged.groups  # the others have nothing to draw
    right = {one.name: one for one in group.measures}
    assert {name: one.decides for name, one in right.items()} == {"loud": True, "quiet": False, "unknown": False}
    assert "noise unknown" in right["unknown"].note
    assert "(quiet, unknown)" in judged.lead
