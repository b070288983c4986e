"""The corpus page in Chromium: keyboard, preview, labels, a slider that is moved and saved; readable on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus.slices import reviews
from tests import services
from tests.browser import reading
from tests.plinth_extras.corpus_page.conftest import RECIPE, Serve

pytestmark = [pytest.mark.slow, pytest.mark.needs("Chromium")]
PATIENCE_MS = 60_000
WHATIF = "/whatif?policy=default&reason=too_few_words"


@pytest.fixture
def screen() -> Iterator[Any]:
    """A page of a browser; errors of scripts and of the content security policy fail the test."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=services.program(*services.CHROMIUM), args=["--no-sandbox"]
        )
        page, errors = browser.new_page(viewport=reading.SCREEN), list[str]()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        yield page
        browser.close()
    assert errors == []


def test_documents_are_read_and_labeled_by_keyboard(screen: Any, serve: Serve, ctx: Context) -> None:
    site = serve()
    screen.goto(f"{site.url}/?reason=too_few_words")
    screen.keyboard.press("/")
    screen.keyboard.type("gj")  # letters in a field are no commands
    assert screen.input_value("#search") == "gj"
    screen.keyboard.press("Escape")
    for key in "jjk":
        screen.keyboard.press(key)
    screen.wait_for_selector("#preview .text")
    first = screen.locator("tr.row").nth(0)
    assert "on" in first.get_attribute("class")
    shown = screen.locator("#preview .head a").inner_text()
    assert shown == f"https://{first.locator('.address a').inner_text()}"
    screen.keyboard.press("g")
    screen.wait_for_selector("tr.row:nth-child(1) .labels .pass")
    screen.wait_for_selector("tr.row:nth-child(2).on")  # labels lead to the next document
    screen.keyboard.press("b")
    screen.wait_for_selector("tr.row:nth-child(2) .labels .fail")
    assert sorted(one.label for one in reviews.read(ctx.workspace)) == ["bad", "good"]
    for key in ("k", "k", "Enter"):
        screen.keyboard.press(key)
    screen.wait_for_selector("header.document h1")
    screen.keyboard.press("b")
    screen.wait_for_selector("header.document .fail:has-text('bad for too_few_words')")
    assert [one.label for one in reviews.read(ctx.workspace)] == ["bad", "bad"]


@pytest.mark.exhaustive
def test_a_bar_and_a_facet_filter_and_the_address_can_be_sent(screen: Any, serve: Serve) -> None:
    site = serve()
    screen.goto(f"{site.url}/")
    bar = screen.locator("section[aria-label=gopher_quality__word_count] .bars a").first
    documents = re.search(r": (\d+) documents", bar.locator("title").text_content())[1]  # type: ignore[index]
    bar.click()
    screen.wait_for_selector(".chip")
    assert screen.locator(".totals b").first.inner_text() == documents
    screen.locator("section[aria-label=bucket] .pick").first.click()
    screen.wait_for_selector(".chip:nth-of-type(2)")
    totals, address = screen.locator(".totals").inner_text(), screen.url
    screen.goto(f"{site.url}/whatif")
    screen.goto(address)
    assert screen.locator(".totals").inner_text() == totals
    screen.locator(".chip").first.click()
    screen.fill("#search", "tidewater")
    screen.keyboard.press("Enter")
    screen.wait_for_selector(".chip:has-text('contains')")


def test_a_threshold_is_moved_and_saved(screen: Any, serve: Serve, recipe: Path) -> None:
    site = serve()
    screen.goto(site.url + WHATIF)
    assert "No documents." in screen.locator("section[aria-label='Newly kept']").inner_text()
    screen.evaluate(  # as a hand that moves the slider to its start
        """() => { const slide = document.querySelector('.slide'); slide.value = 0;
                   slide.dispatchEvent(new Event('input', {bubbles: true})); }"""
    )
    screen.wait_for_selector(".fact.up .value")
    assert screen.input_value("#t0") == "10"  # the least number of words
    assert "t0=10" in screen.url
    assert screen.locator("section[aria-label='Newly kept'] tr.row").count() == 8
    screen.keyboard.press("j")
    screen.wait_for_selector("#preview .text")
    screen.fill("#t0", "12")
    screen.keyboard.press("Tab")
    screen.wait_for_selector("h3:has-text('published 20')")
    screen.wait_for_selector("#drop[value*='< 12']")
    screen.click("text=Save into ours.yaml")
    screen.wait_for_selector(".mark.pass:has-text('Saved in')")
    assert recipe.read_text() == RECIPE.replace("word_count < 20", "word_count < 12")


@pytest.mark.exhaustive
def test_pages_can_be_read_by_everybody(screen: Any, serve: Serve) -> None:
    site = serve()
    screen.goto(f"{site.url}/?decision=drop")
    document = screen.locator("td.address a").first.get_attribute("href")
    found = {}
    for address in ("/?decision=drop", "/?text=the", document, "/whatif", f"{WHATIF}&t0=5"):
        screen.goto(site.url + address)
        found[address] = [*reading.faint(screen), *reading.phone(screen), *reading.squeezed(screen)]
        screen.set_viewport_size(reading.SCREEN)
    assert {name: own for name, own in found.items() if own} == {}
