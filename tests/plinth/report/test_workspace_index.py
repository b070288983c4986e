"""The index of pages: state in words, unknown is not well, foreign names stay text, nothing is loaded."""

from __future__ import annotations

import re

from plinth.report.page import IndexData, PageGroup, PageLine, RunLine, ServerLink, StateTile, index_page


def made(**fields: object) -> str:
    return index_page(IndexData(workspace="w", written="2026-01-02 03:04 UTC", **fields))


def test_every_standing_is_a_word_and_not_a_colour_alone() -> None:
    tiles = tuple(StateTile(label=name, value="v", standing=name) for name in ("good", "attention", "bad", "unknown"))
    shown = re.findall(r'<span class="badge (\w+)">([\w ]+)</span>', made(tiles=tiles))
    assert shown == [("pass", "ok"), ("look", "warning"), ("fail", "action required"), ("unsure", "unknown")]
    assert "badge" not in re.sub(r"<style>.*</style>", "", made(tiles=(StateTile(label="a", value="b"),)), flags=re.S)


def test_the_title_names_the_release_and_servers_are_linked_while_they_run() -> None:
    text = made(title="demo", recipe="demo")
    assert "<title>demo: state and pages</title>" in text
    assert "<h1>demo: state and pages</h1>" in text
    assert "workspace <code>w</code>" in text
    assert "Run <code>plinth up</code> to start Dagster and MLflow. This page links to them while they run" in text
    served = made(servers=(ServerLink(name="Dagster", url="http://127.0.0.1:3000/"),
                           ServerLink(name="evil", url="javascript:alert(1)")))  # fmt: skip
    assert '<a href="http://127.0.0.1:3000/">Dagster</a>' in served
    assert "plinth up" not in served
    assert "javascript" not in served


def test_runs_and_pages_are_linked_beside_the_index() -> None:
    run = RunLine(run="r1", state="finished", standing="good", steps=1200, total_steps=2000, loss=3.25, goodput=0.5,
                  updated="today", href="r1.html")  # fmt: skip
    group = PageGroup(
        name="Runs", command="plinth run timeline latest", pages=(PageLine(title="R", href="r1.html", written="t"),)
    )
    text = made(runs=(run,), older_runs=3, groups=(group, PageGroup(name="Canary", command="plinth release canary")))
    assert text == made(
        runs=(run,), older_runs=3, groups=(group, PageGroup(name="Canary", command="plinth release canary"))
    )
    assert text.count('href="r1.html"') == 2
    assert "1,200 of 2,000" in text
    assert "3.250" in text
    assert "50%" in text
    assert "3 older" in text
    assert "<code>plinth release canary</code>" in text
    assert "<code>plinth run timeline latest</code>" not in text  # a page of that kind is there


def test_foreign_names_stay_text_and_nothing_is_loaded() -> None:
    hostile = '"><script>alert(1)</script>'
    text = made(
        recipe=hostile,
        tiles=(StateTile(label=hostile, value=hostile, note=hostile, href=hostile),),
        runs=(RunLine(run=hostile, state=hostile, steps=0, total_steps=0),),
        groups=(PageGroup(name=hostile, pages=(PageLine(title=hostile, href=hostile, written=hostile),)),),
    )
    assert "<script" not in text
    assert not any(word in text for word in ("http://", "https://", "src=", "@import"))
