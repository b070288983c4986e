"""The pages over HTTP: links, errors by name, hostile text, labels, and a rule that is saved and run."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.corpus.policy import policy
from plinth.corpus.slices import reviews
from plinth.records import Manifest
from plinth_extras.corpus_page.recipe_edit import current
from plinth_jobs.recipes import FOLDER, load
from tests import judged_corpus
from tests.plinth_extras.corpus_page.conftest import RECIPE, Serve
from tests.plinth_extras.corpus_page.test_document import with_text

#: Addresses that a crawl of the pages visits.
PAGES = 60
HOSTILE = (
    "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> {{ 7 * 7 }} {% raw %} \x1b[31m\x00 "
    "\u202egnp.exe\u2066 </div></main>"
)


def text_of(body: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", body))


def test_every_link_of_the_pages_answers(serve: Serve) -> None:
    site, seen, waiting = serve(), dict[str, str](), ["/", "/whatif", "/?decision=drop&in.text_bytes=..100"]
    while waiting and len(seen) < PAGES:
        address = waiting.pop(0)
        kind = re.sub(r"[0-9a-f]{32}|=[^&]*", "", address)  # one address of each set of parameters
        if kind in seen:
            continue
        seen[kind] = address
        status, body, headers = site.ask(address)
        assert (status, address) == (200, address)
        if address.startswith("/static"):
            continue
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert not re.search(r" style=|<style|<script(?! src=\"/static/page.js\")| on[a-z]+=", body)
        waiting += [html.unescape(one) for one in re.findall(r'(?:href|src)="(/[^"]*)"', body)]
    assert len(seen) == PAGES
    assert {address.partition("?")[0].split("/")[1] for address in seen.values()} == {
        "",
        "document",
        "static",
        "whatif",
    }


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/?sort=nope", 400, "no numeric column"),
        ("/?page=999", 400, "page '999'"),
        ("/document/" + "0" * 32, 404, "no document"),
        ("/document/<script>", 404, "no document '<script>'"),
        ("/whatif?policy=default&reason=nope", 404, "no rule default/nope"),
        ("/whatif?policy=default&reason=too_few_words&drop=x.y<1", 400, "no annotator 'x'"),
        ("/whatif?policy=default&reason=too_few_words&t0=x", 400, "not a threshold"),
        ("/whatif?policy=default&reason=too_few_words&t9=1", 400, "not a threshold"),
        ("/whatif?policy=default&reason=too_few_words&drop=(", 400, "cannot be read"),
        ("/whatif?policy=default&reason=too_few_words&drop=%00", 400, "cannot be read"),
        ("/whatif?policy=default&reason=too_few_words&seed=%C2%B2&t%C2%B2=5", 200, "too_few_words"),
        ("/?similar=a+text", 404, "dedup/index"),
        ("/static/../app.py", 404, ""),
        ("/nothing", 404, ""),
    ],
)
def test_what_cannot_be_answered_is_named(serve: Serve, address: str, status: int, words: str) -> None:
    found, body, headers = serve().ask(address.replace("<", "%3C"))
    assert (found, words in text_of(body)) == (status, True)
    assert "Traceback" not in body
    assert "content-security-policy" in headers


def test_a_damaged_ledger_and_a_missing_one_are_named(ctx: Context, serve: Serve) -> None:
    site = serve()
    assert site.ask("/")[0] == 200
    path = ctx.store.path(ctx.refs.current("ledger").parts[0].blob)
    path.chmod(0o600)
    data = path.read_bytes()
    for harmed, status, words in ((data[:-9], 500, "truncated"), (data[:-9] + b"123456789", 500, "has changed")):
        path.write_bytes(harmed)
        found, body, _ = site.ask("/")
        assert (found, words in body, "Traceback" in body) == (status, True, False)
    path.unlink()
    assert "is missing from the store" in text_of(site.ask("/")[1])
    (ctx.workspace.refs / "ledger.json").unlink()
    found, body, _ = site.ask("/")
    assert (found, "plinth run --select ledger" in text_of(body)) == (404, True)


def test_hostile_text_is_shown_as_text(ctx: Context, serve: Serve) -> None:
    with_text(ctx, HOSTILE)
    site = serve()
    listed = site.ask("/?text=onerror")[1]
    address = html.unescape(re.search(r'href="(/document/[^"]*)"', listed)[1])  # type: ignore[index]
    for body in (listed, site.ask(address)[1], site.ask(f"{address}&part=preview")[1]):
        assert "<script>alert" not in body
        assert "<img" not in body
        assert not re.search("[\x00-\x08\x1b\u202a-\u202e\u2066-\u2069]", body)
    shown = text_of(site.ask(address)[1])
    assert "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> {{ 7 * 7 }} {% raw %} \\x1b[31m\\x00" in shown
    assert "\\u202egnp.exe\\u2066" in shown
    hostile = site.ask("/?text=%3Cscript%3Ealert(1)&bucket=%22%3E%3Cscript%3E")[1]
    assert "<script>alert" not in hostile
    assert '"><script>' not in hostile


def test_labels_are_those_of_reviews(ctx: Context, serve: Serve) -> None:
    site = serve()
    body = site.ask("/?reason=too_few_words")[1]
    document = re.search(r'data-id="([0-9a-f]{32})"', body)[1]  # type: ignore[index]
    form = {"token": site.token(), "id": document, "reason": "too_few_words", "back": "/?reason=too_few_words"}
    status, _, headers = site.ask("/label", {**form, "label": "good"})
    assert (status, headers["location"]) == (303, "/?reason=too_few_words")
    (stored,) = reviews.read(ctx.workspace)
    assert (stored.id, stored.reason, stored.label) == (document, "too_few_words", "good")
    assert ">good</span>" in site.ask("/?reason=too_few_words")[1]
    for wrong in ({"label": "fine"}, {"label": "bad", "reason": "A B"}, {"label": "bad", "id": "x"}):
        assert site.ask("/label", {**form, **wrong})[0] == 400
    for back in ("//attacker.example", "https://attacker.example", "/\\attacker.example", "javascript:alert(1)"):
        assert site.ask("/label", {**form, "label": "bad", "back": back})[2]["location"] == "/"
    assert reviews.read(ctx.workspace)[0].label == "bad"
    next((ctx.workspace.root / "reviews").glob("*.jsonl")).write_text("{}\n")
    assert "Labels are not shown" in site.ask("/")[1]


def test_a_threshold_is_chosen_saved_and_run(ctx: Context, serve: Serve, recipe: Path) -> None:
    site = serve()
    body = site.ask("/whatif?policy=default&reason=too_few_words&t0=5")[1]
    assert "Save into ours.yaml" in body
    kept = int(re.search(r'kept by the policy</div><div class="value">([\d,]+)<', body)[1].replace(",", ""))  # type: ignore[index]
    listed = re.findall(r'data-id="([0-9a-f]{32})"', body)
    assert len(listed) == judged_corpus.PLANTED["web"][1] + judged_corpus.PLANTED["prose"][1]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', body[body.index('action="/whatif/save"') :]))
    status, _, headers = site.ask("/whatif/save", {name: html.unescape(value) for name, value in fields.items()})
    assert status == 303
    assert recipe.read_text() == RECIPE.replace("word_count < 20", "word_count < 5")
    after = site.ask(headers["location"])[1]
    assert "Saved in" in after
    assert 'action="/whatif/save"' not in after
    assert "The recipe has another rule" in site.ask("/whatif?policy=default&reason=too_few_words")[1]

    rules = load(recipe).corpus.policies["default"]
    policies = {}
    for bucket in judged_corpus.PLANTED:
        scores = {name: ctx.refs.current(f"{bucket}/{name}") for name in judged_corpus.ANNOTATORS}
        made = policy.run(ctx, bucket, rules, ctx.refs.current(f"{bucket}/documents"), scores, judged_corpus.RIGHTS)
        policies[bucket] = made
    assert sum(made.stats["kept"] for made in policies.values()) == kept


def test_a_recipe_that_is_not_the_users_is_not_edited(serve: Serve) -> None:
    packaged = FOLDER / "tiny.yaml"
    before = packaged.read_bytes()
    site = serve(path=packaged)
    body = site.ask("/whatif?policy=default&reason=few_stop_words&t0=1")[1]
    assert "is not a recipe of yours" in body
    form = {"token": site.token(), "policy": "default", "reason": "few_stop_words"}
    form |= {"drop": "gopher_quality.stop_words < 1", "before": current(load(packaged), "default", "few_stop_words")}
    assert site.ask("/whatif/save", form)[0] == 403
    assert packaged.read_bytes() == before
    assert "started without a recipe" in serve(path=None).ask("/whatif?policy=web&reason=few_stop_words&t0=1")[1]


def test_a_rule_that_changed_in_the_recipe_is_a_conflict(serve: Serve, recipe: Path) -> None:
    site = serve()
    form = {"token": site.token(), "policy": "default", "reason": "too_few_words",
            "drop": "gopher_quality.word_count < 5", "before": "gopher_quality.word_count < 20"}  # fmt: skip
    recipe.write_text(RECIPE.replace("word_count < 20", "word_count < 30"))
    status, body, _ = site.ask("/whatif/save", form)
    assert (status, "has changed since the page was opened" in text_of(body)) == (409, True)
    recipe.write_text("extends: nothing.yaml\n")
    assert site.ask("/whatif/save", form)[0] in (400, 403, 404)
    assert site.ask("/")[0] == 200


def test_a_stale_ledger_says_so(ctx: Context, serve: Serve) -> None:
    site, sentence = serve(), "Verdicts were published after this ledger"
    assert sentence not in site.ask("/")[1]
    made = ctx.refs.current("web/verdicts")
    ctx.refs.publish(Manifest.model_validate({**made.model_dump(), "version": "again"}), key="again")
    assert sentence in site.ask("/")[1]
