"""A results page has one subject: content, title and file belong to one candidate, also after later runs."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.recipe.load import load
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_jobs import pipeline, results
from plinth_registry import decisions
from plinth_registry.releases import ReleaseHistory, ReleaseRecord
from tests.jobs.conftest import RECIPE


class Line(NamedTuple):
    """Results of one training."""

    funnel: Manifest
    checkpoint: Manifest
    evaluation: Manifest
    candidate: Manifest


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def publish(ctx: Context, asset: str, stats: dict[str, Any], **inputs: Manifest) -> Manifest:
    digests = {name: made.digest for name, made in inputs.items()}
    made = Manifest(asset=asset, step=asset, version="1", params={}, inputs=digests, parts=(), stats=stats)
    ctx.refs.publish(made, f"key of {made.digest}")
    return made


def line(ctx: Context, number: int, *, registered: bool = True) -> Line:
    """A corpus, run, evaluation and, perhaps, candidate whose numbers are all `number`."""
    mixture = publish(ctx, "mixture", {"number": number})
    stages = [{"stage": "documents", "documents_in": number}]
    total = {"stages": stages, "trained": {"documents": number, "tokens": number}}
    funnel = publish(ctx, "funnel", {"total": total}, mixture=mixture)
    run = publish(ctx, "run", {"run_id": f"run-{number}", "tokens": number}, mixture=mixture)
    checkpoint = publish(ctx, "checkpoint", {"number": number}, run=run)
    overall = {"model": float(number), "gzip": 2.0, "trigram": 3.0, "low": float(number), "high": float(number)}
    evaluation = publish(ctx, "evaluation", {"overall": overall}, checkpoint=checkpoint)
    stats = {"model": "tiny-candidate", "version": str(number)}
    if registered:
        candidate = publish(ctx, "candidate", stats, checkpoint=checkpoint, evaluation=evaluation)
    return Line(funnel, checkpoint, evaluation, candidate if registered else checkpoint)


def record(number: int, made: Line, action: str, version: str, previous: str | None, at: str) -> ReleaseRecord:
    digests = {"candidate": "k", "checkpoint": made.checkpoint.digest}
    return ReleaseRecord(
        number=number, prior=None, action=action, goal="champion", model="tiny", version=version, previous=previous,
        candidate=digests, candidate_version=made.candidate.stats["version"], by="ada", reason="good", at=at,
    )  # type: ignore[arg-type]  # fmt: skip


def test_a_page_shows_one_candidate_and_nothing_of_a_later_one(ctx: Context) -> None:
    recipe = load(RECIPE)
    first, second = line(ctx, 1), line(ctx, 2)
    shown = results.newest(ctx, recipe)
    assert (shown.name, shown.title, shown.version) == ("candidate-2", "candidate 2", "2")
    earlier = results.of_candidate(ctx, recipe, "1")
    for one, made in ((earlier, first), (shown, second)):
        assert (one.funnel, one.checkpoint, one.evaluation) == (made.funnel, made.checkpoint, made.evaluation)
    values = [[fact.value for fact in results._headline(one)] for one in (earlier, shown)]
    assert values == [["1"] * 4 + ["1.000"], ["2"] * 4 + ["2.000"]]
    assert {results.path(ctx, recipe, one.name).name for one in (earlier, shown)} == {
        "tiny-candidate-1.html", "tiny-candidate-2.html"
    }  # fmt: skip
    with pytest.raises(MissingError, match="candidate 3"):
        results.of_candidate(ctx, recipe, "3")


def test_a_checkpoint_without_a_candidate_is_not_shown_with_another_ones_release(ctx: Context) -> None:
    recipe = load(RECIPE)
    line(ctx, 1)
    newer = line(ctx, 2, registered=False)
    shown = results.newest(ctx, recipe)
    assert shown.title == f"checkpoint {newer.checkpoint.digest[:12]}"
    assert (shown.funnel, shown.evaluation) == (newer.funnel, newer.evaluation)
    assert (results._release(ctx, recipe, shown), results._gates(ctx, recipe, shown)) == (None, ())
    assert results.FILE.fullmatch(results.file_name(recipe, shown.name))


def test_a_corpus_has_a_page_of_its_own(ctx: Context) -> None:
    with pytest.raises(MissingError, match="funnel"):
        results.newest(ctx, load(RECIPE))
    mixture = publish(ctx, "mixture", {})
    funnel = publish(ctx, "funnel", {}, mixture=mixture)
    shown = results.newest(ctx, load(RECIPE))
    assert (shown.name, shown.mixture, shown.run) == (f"corpus-{funnel.digest[:12]}", mixture, None)
    assert results.FILE.fullmatch(results.file_name(load(RECIPE), shown.name))


def test_the_release_on_a_page_is_what_became_of_its_candidate(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two candidates and a rollback: each page names the place of its own version, and the champion as such."""
    recipe = load(RECIPE)
    first, second, third = line(ctx, 1), line(ctx, 2), line(ctx, 3)
    history = [
        record(1, first, "champion", "1", None, "2026-01-01T10:00:00+00:00"),
        record(2, second, "champion", "2", "1", "2026-01-02T10:00:00+00:00"),
    ]
    monkeypatch.setattr(decisions, "history", lambda *_: ReleaseHistory(history))

    def shown() -> list[tuple[str, str, str]]:
        found = []
        for version in "123":
            card = results._release(ctx, recipe, results.of_candidate(ctx, recipe, version))
            assert card is not None
            facts = {fact.label: fact.value for fact in card.facts}
            found.append((card.version, card.alias, facts.get("champion when this page was written", "")))
        return found

    assert shown() == [
        ("1", "previous", "version 2, candidate 2"), ("2", "champion", ""), ("", "", "version 2, candidate 2")
    ]  # fmt: skip
    history.append(record(3, first, "rollback", "1", "2", "2026-01-03T10:00:00+00:00"))
    assert shown() == [
        ("1", "champion", ""), ("2", "rolled back", "version 1, candidate 1"), ("", "", "version 1, candidate 1")
    ]  # fmt: skip
    assert third.checkpoint.digest != first.checkpoint.digest


def test_the_summary_of_a_run_names_the_alias_and_not_the_last_action(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, made = load(RECIPE), line(ctx, 1)
    at = "2026-01-01T10:00:00+00:00"
    history = [record(1, made, "champion", "1", None, at), record(2, made, "champion", "2", "1", at)]
    monkeypatch.setattr(decisions, "history", lambda *_: ReleaseHistory(history))
    monkeypatch.setattr(decisions, "pending", lambda *_: ())

    def shown() -> tuple[str, str, str]:
        found = pipeline.describe_release(ctx, recipe)
        return found["release"], found["alias"], found["last_action"]

    assert shown() == ("tiny version 2", "champion", "champion")
    history.append(record(3, made, "rollback", "1", "2", at))
    assert shown() == ("tiny version 1", "champion", "rollback")
    history.append(record(4, made, "canary", "3", "1", at))
    assert shown() == ("tiny version 1", "champion", "canary")
    history[1:] = [record(2, made, "withdrawn", None, "1", at)]  # type: ignore[arg-type]
    assert shown() == ("tiny: no version", "none", "withdrawn")


def test_a_page_is_current_until_something_that_it_shows_is_written(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, pending, clock = load(RECIPE), list[int](), count(2 * 10**18)  # later than this test
    line(ctx, 1)
    monkeypatch.setattr(decisions, "pending", lambda *_: tuple(pending))

    def write(name: str) -> Path:
        target = ctx.workspace.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        os.utime(target, ns=(now := next(clock), now))
        return target

    assert results.current(ctx, recipe) is None
    target = write("reports/tiny-candidate-1.html")
    write("reports/index.html")
    assert results.current(ctx, recipe) == target
    pending.append(1)  # its gates change without a file
    assert results.current(ctx, recipe) is None
    pending.clear()
    for name in (
        *("releases/00001.json", "approvals/key/a.json", "policies/tiny/1.json", "taint/1.json", "refs/run.json"),
        "reports/other.html",
    ):
        write(name)
        assert results.current(ctx, recipe) is None, name
        write("reports/tiny-candidate-1.html")
        assert results.current(ctx, recipe) == target
    line(ctx, 2)
    assert results.current(ctx, recipe) is None  # the page of candidate 2 is another one


def test_pages_are_renewed_when_a_release_record_moves_their_candidate(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, written = load(RECIPE), list[str]()
    first, second = line(ctx, 1), line(ctx, 2)
    history = [record(1, first, "champion", "1", None, "2026-01-01T10:00:00+00:00")]
    monkeypatch.setattr(decisions, "history", lambda *_: ReleaseHistory(history))
    monkeypatch.setattr(results, "write", lambda _, __, version: written.append(version))
    assert results.renew(ctx, recipe) == ()  # no page was written so far
    for version in "12":
        target = results.path(ctx, recipe, f"candidate-{version}")
        target.write_text("x")
        os.utime(target, (1_767_348_000, 1_767_348_000))  # 2026-01-02 10:00 UTC
    results.renew(ctx, recipe)
    assert written == []
    history.append(record(2, second, "champion", "2", "1", "2026-01-03T10:00:00+00:00"))
    results.renew(ctx, recipe)
    assert written == ["1", "2"]
