"""Search from the request to documents, runs and checkpoints."""

from typing import Any

import pytest

from plinth.errors import MissingError
from plinth.provenance import document_rows
from plinth.records import Manifest
from plinth.training.checkpoint import checkpoint
from plinth.training.telemetry.timeline import Timeline
from plinth_audit.takedown import exposed_runs, search
from plinth_audit.takedown.exposed_runs import HERE, PUBLISHED, RETIRED, holdings


def ids(found: search.FoundDocuments) -> dict[str, str]:
    return {one.id: one.how for one in found.documents}


def test_an_address_brings_the_near_duplicate_that_stayed_in_its_place(held: Any) -> None:
    found = search.find(held.ctx, "url", "HTTPS://www.Example.org/prose/page-1.html#top")
    assert ids(found) == {held.id("prose", 1): "url", held.id("prose", 0): "near duplicate"}
    assert found.count == 2
    assert found.published == {"prose/part-00000.parquet": 2}
    first, second = found.documents
    assert (first.decision, first.reason, second.decision) == ("drop", "near_duplicate", "train")
    assert second.shard is not None
    assert found.shards[second.shard] >= (second.tokens or 0) > 0


def test_a_document_alone(held: Any) -> None:
    assert ids(search.find(held.ctx, "document", held.id("code", 1))) == {held.id("code", 1): "document"}


@pytest.mark.parametrize(("kind", "value"), [("domain", "example.org"), ("licence", "cc-by-4.0")])
def test_rules_take_all_that_they_cover(held: Any, kind: Any, value: str) -> None:
    found = search.find(held.ctx, kind, value)
    assert found.count == 6
    assert {one.bucket for one in found.documents} == {"prose", "code"}


def test_nothing_is_found_of_what_nobody_has(held: Any) -> None:
    for kind, value in (("domain", "example.com"), ("url", "https://example.org/"), ("document", "0" * 32)):
        found = search.find(held.ctx, kind, value)  # type: ignore[arg-type]
        assert (found.count, found.documents, holdings(held.ctx, found).runs) == (0, (), ())


def test_what_left_the_corpus_is_still_found_in_earlier_ledgers(held: Any) -> None:
    made = held.made["ledger"]
    kept = tuple(part for part in made.parts if not part.name.startswith("code/"))
    held.keep(Manifest.model_validate(made.model_dump() | {"parts": kept, "version": "later"}))
    found = search.find(held.ctx, "document", held.id("code", 0))
    assert (found.count, found.earlier) == (0, 1)
    assert not found.documents[0].published
    assert [run.run for run in holdings(held.ctx, found).runs] == [held.run.run_id]


def test_a_text_without_indexes_says_what_it_could_not_search(held: Any) -> None:
    found = search.find(held.ctx, "text", "alice was beginning to get very tired of sitting")
    assert len(found.notes) == 2
    assert "near duplicates were not searched" in found.notes[0]
    assert "verbatim spans were not searched" in found.notes[1]


def test_a_workspace_without_a_ledger_is_named(line: Any) -> None:
    with pytest.raises(MissingError, match="no ledger"):
        search.find(line.ctx, "domain", "example.org")


def test_runs_steps_and_every_checkpoint_with_its_place(held: Any) -> None:
    run, id_ = held.run, held.id("prose", 0)
    (seen,) = document_rows.runs(held.ctx, "prose", id_)
    first = seen["steps"][0]
    events = Timeline(run.directory.events)
    for step in (first - 1, first, first + 1, first + 2):
        events.append("checkpoint", step=step)
    for step in (first, first + 1):
        run.directory.checkpoints.mkdir(parents=True, exist_ok=True)
        (run.directory.checkpoints / f"{checkpoint.name(step)}.json").write_text("{}")
    events.append("uploaded", step=first + 2)
    found = search.find(held.ctx, "document", id_)
    (own,) = holdings(held.ctx, found).runs
    assert own.steps == tuple(seen["steps"])
    assert own.times_seen >= seen["times_seen"]
    assert own.exact
    places = {one.step: one.places for one in own.checkpoints}
    last = run.total_steps - 2
    assert first - 1 not in places or first - 1 == last
    assert places[first] == places[first + 1] == (HERE,)
    assert RETIRED in places[first + 2]
    assert any(place.endswith(run.run_id) for place in places[first + 2])
    assert PUBLISHED in places[last]
    assert own.checkpoints[-1].digests == (held.made["checkpoint"].digest,)


def test_beyond_the_exact_number_every_checkpoint_of_the_run_is_said_to_hold_some(
    held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposed_runs, "EXACT", 1)
    Timeline(held.run.directory.events).append("checkpoint", step=1)
    (own,) = holdings(held.ctx, search.find(held.ctx, "domain", "example.org")).runs
    assert not own.exact
    assert own.checkpoints[0].step == 1


def test_equal_keys_of_different_values_are_told_apart(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.index, "key_of", lambda kind, value: 7)
    found = search.find(held.ctx, "url", "https://example.org/code/page-0.html")
    assert [one.id for one in found.documents if one.how == "url"] == [held.id("code", 0)]
