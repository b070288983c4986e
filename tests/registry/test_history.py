"""The champion follows from the records by arithmetic."""

from __future__ import annotations

import pytest

from plinth_registry.releases import Action, ReleaseRecord, Standing, ended, standing_after


def record(action: Action, version: str | None, previous: str | None = None) -> ReleaseRecord:
    return ReleaseRecord(
        number=1, prior=None, action=action, goal=action, model="m", version=version, previous=previous,
        candidate={}, candidate_version=None, by="ada", reason="test", at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("moves", "champion", "canary", "previous", "gone"),
    [
        ([], None, None, None, ()),
        ([("canary", "1")], None, "1", None, ()),
        ([("canary", "1"), ("champion", "1")], "1", None, None, ()),
        ([("champion", "1"), ("canary", "2")], "1", "2", None, ()),
        ([("champion", "1"), ("champion", "2")], "2", None, "1", ()),
        ([("champion", "1"), ("champion", "2"), ("rollback", "1")], "1", None, None, ("2",)),
        ([("champion", "1"), ("champion", "2"), ("champion", "3"), ("rollback", "1")], "1", None, None, ("2", "3")),
        ([("champion", "1"), ("withdrawn", None)], None, None, None, ("1",)),
        ([("champion", "1"), ("withdrawn", None), ("champion", "2")], "2", None, None, ("1",)),
        ([("champion", "1"), ("canary", "2"), ("returned", "1", "2")], "1", None, None, ("2",)),
        ([("champion", "1"), ("canary", "2"), ("canary", "3")], "1", "3", None, ("2",)),
        ([("champion", "1"), ("canary", "2"), ("canary", "3"), ("canary", "2")], "1", "2", None, ("3",)),
        ([("champion", "1"), ("champion", "2"), ("canary", "1"), ("canary", "3")], "2", "3", "1", ()),
        ([("champion", "1"), ("canary", "2"), ("returned", "1", "2"), ("canary", "2")], "1", "2", None, ()),
    ],
)
def test_what_the_records_say(moves, champion, canary, previous, gone) -> None:
    found = standing_after(record(*move) for move in moves)
    assert (found.champion, found.canary, found.previous, found.gone) == (champion, canary, previous, gone)


@pytest.mark.parametrize(
    ("moves", "after"),
    [
        ([], 0),
        ([("canary", "1"), ("champion", "1")], 0),
        ([("champion", "1"), ("withdrawn", None)], 2),
        ([("champion", "1"), ("withdrawn", None), ("champion", "1")], 2),
        ([("champion", "1"), ("withdrawn", None), ("champion", "1"), ("withdrawn", None)], 4),
        ([("champion", "2"), ("canary", "1"), ("returned", "2", "1")], 3),
        ([("champion", "2"), ("canary", "1"), ("canary", "3")], 3),
        ([("champion", "1"), ("canary", "2")], 0),
        ([("champion", "1"), ("champion", "2")], 2),
        ([("champion", "1"), ("champion", "2"), ("rollback", "1")], 0),
        ([("champion", "1"), ("champion", "2"), ("rollback", "1"), ("champion", "3")], 4),
        ([("champion", "2"), ("champion", "1"), ("rollback", "2")], 3),
    ],
)
def test_which_record_ended_the_promotion_of_a_candidate(moves, after) -> None:
    """Records of version 1; others are other candidates."""
    candidates = {"1": {"candidate": "a"}, None: {"candidate": "a"}}
    records = [
        record(*move).model_copy(update={"number": number, "candidate": candidates.get(move[1], {"candidate": "b"})})
        for number, move in enumerate(moves, 1)
    ]
    assert ended(records, {"candidate": "a"}) == after


def test_a_version_has_one_place() -> None:
    found = standing_after(record("champion", version) for version in "123")
    assert [found.place(version) for version in "1234"] == ["superseded", "previous", "champion", None]
    assert Standing().place("1") is None
