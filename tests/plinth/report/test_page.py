"""The page: whole, self-contained, safe, and honest about what is missing."""

import re
from html.parser import HTMLParser
from typing import Any

from plinth.report import figures
from plinth.report.page import Fact, GateOutcome, Next, ReleaseCard, ReportData, page, reasons, safe_link, stacked

VOID = {"meta", "br", "img", "link", "input", "hr", "path", "use"}


class Reader(HTMLParser):
    """Checks nesting and collects what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.sections: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.loads += [value for name, value in attrs if name in ("src", "srcset", "action", "data") and value]
        self.loads += [found["xlink:href"] or ""] if "xlink:href" in found else []
        assert not [name for name in found if name.startswith("on")]
        if tag == "section":
            self.sections.append(found["id"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


def test_has_every_section_says_what_it_was_given_and_loads_nothing(data: ReportData) -> None:
    html = page(data)
    reader = read(html)
    assert set(reader.sections) == {
        "release", "next", "gates", "bits-per-byte", "run", "funnel", "mixture", "lineage"
    }  # fmt: skip
    assert all(load.startswith("#") for load in reader.loads)
    assert not {"link", "iframe", "object", "embed"} & set(reader.tags)
    assert reader.tags.count("script") == 1  # for the curves
    assert not re.search(r"@import|url\((?!#)", html)
    assert len(html) < 300_000
    paths = re.findall(r'<clipPath id="([^"]+)">(.*?)</clipPath>', html, re.DOTALL)
    assert len(dict(paths)) == len({(name, shape.strip()) for name, shape in paths})  # no plot has another's frame
    assert page(data) == html
    for expected in (data.title, "champion", "1.523", "manuals/de", "4 gates: 3 passed, 1 pending",
                     "0 of 1 approvals", "33.8 MB", "plinth explain DOC_ID", "ab" * 8, "demo-approver",
                     "3,410 tokens/s"):  # fmt: skip
        assert expected in reader.text, expected


def test_bold_is_the_best_of_the_three(data: ReportData) -> None:
    gzip_wins = dict(data.slices["web"]) | {"gzip": 1.0}
    slices = {"web": data.slices["web"], "zip": gzip_wins}
    text = page(data.model_copy(update={"slices": slices, "languages": {}}))
    assert re.findall(r"<strong>([\d.]+)</strong>", text) == ["1.770", "1.000"]
    drawn = figures.bits_per_byte(slices).axes[0].texts
    assert [one.get_text().strip() for one in drawn if one.get_fontweight() == "bold"] == ["1.77", "1.00"]


def test_empty_page_is_only_its_title() -> None:
    reader = read(page(ReportData(title="nothing yet")))
    assert reader.sections == []
    assert "nothing yet" in reader.text


def test_text_from_the_corpus_stays_text(data: ReportData) -> None:
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(1)>{{ 7 * 7 }}'
    changed = data.model_copy(
        update={
            "title": evil,
            "subtitle": evil,
            "headline": (Fact(label=evil, value=evil, note=evil),),
            "gates": (GateOutcome(name=evil, state=evil, tone="fail", reason=evil),),
            "slices": {evil: dict(data.slices["web"])},
        }
    )
    reader = read(page(changed))
    assert reader.tags.count("script") == 1
    assert "img" not in reader.tags
    assert reader.text.count(evil) >= 7


def test_links_that_would_run_are_dropped() -> None:
    html = page(
        ReportData(title="t", next=(Next(what="bad", link="javascript:alert(1)"), Next(what="ok", link="http://x")))
    )
    assert "javascript" not in html
    assert 'href="http://x"' in html
    assert safe_link("tiny-comparison.html") == "tiny-comparison.html"  # next to this page
    assert safe_link("../gx/gx/uncommitted/data_docs/local_site/index.html")  # the Data Docs of the workspace
    for link in ("../up.html", "file:///w/x.html", "../gx/../x.html", "javascript:x.html", "//host/x.html", "a b.html",
                 "x.html#y", ".html", "x.svg"):  # fmt: skip
        assert safe_link(link) == "", link


def test_the_verdict_answers_whether_a_candidate_may_be_released(data: ReportData) -> None:
    def gate(state: str, tone: str) -> GateOutcome:
        return GateOutcome(name=f"gate_{state}", state=state, tone=tone, reason="")  # type: ignore[arg-type]

    for gates, verdict in (
        ((gate("passed", "pass"), gate("not applicable", "note")), "May be released: all required gates passed."),
        ((gate("passed", "pass"), gate("pending", "fail")), "May not be released yet: gate_pending pending."),
        ((gate("failed", "fail"), gate("pending", "fail")), "May not be released: blocked by gate_failed."),
    ):
        text = read(page(data.model_copy(update={"gates": gates, "release": None}))).text
        assert verdict in text
        assert "1 release gate passed, none failed, 1" in text or verdict.endswith("gate_failed.")


def test_wide_tables_become_blocks_on_a_phone_and_names_stay_text() -> None:
    head = "".join(f"<th>{name}</th>" for name in ("a", "b", "&lt;c&gt;", "d"))
    cells = "<td>1</td><td>2</td><td>3</td><td>4</td>"
    made = stacked(f"<table><tr>{head}</tr><tr>{cells}</tr></table><table><tr><th>a</th></tr></table>")
    assert '<table class="stack">' in made
    assert '<td>1</td><td data-label="b">2</td><td data-label="&lt;c&gt;">3</td>' in made
    assert "<table><tr><th>a</th></tr></table>" in made


def test_not_released_is_said() -> None:
    html = page(ReportData(title="t", release=ReleaseCard(name="m", version="1")))
    assert "not released" in read(html).text


def test_reasons_are_ordered_and_shares_are_of_all_that_came_in(funnel: dict[str, Any]) -> None:
    rows = reasons(funnel)
    assert [row["documents"] for row in rows] == sorted((row["documents"] for row in rows), reverse=True)
    assert rows[0]["reason"] == "licence"
    assert rows[0]["share"] == rows[0]["documents"] / funnel["total"]["stages"][0]["documents_in"]
