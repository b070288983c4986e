"""Bands and rows: presets, recall asked for, datasketch's optimum; recorded as numbers and nothing else."""

import pytest
from pydantic import ValidationError

from plinth import fingerprint
from plinth.corpus.dedup import parameters
from plinth.corpus.dedup.parameters import MinHash
from plinth_text.similarity import recall


@pytest.mark.parametrize(
    ("preset", "shape"),
    [
        ("fineweb", (5, None, 14, 8, 0.8)),
        ("nemo", (5, 24, 20, 13, 0.8)),
        ("marin", (5, 5, 26, 11, 0.8)),
        ("redpajama", (13, None, 9, 13, 0.8)),
        ("text-dedup", (5, None, None, None, 0.7)),
    ],
)
def test_presets_are_the_published_settings(preset: str, shape: tuple[int | None, ...]) -> None:
    made = MinHash.model_validate({"preset": preset})
    found = (made.shingle_words, made.shingle_characters, made.bands, made.rows, made.threshold)
    for value, expected in zip(found, shape, strict=True):
        assert expected is None or value == expected or (expected == 5 and made.shingle_characters)
    if preset == "text-dedup":
        assert made.bands * made.rows <= 240


def test_a_preset_leaves_no_trace_but_its_numbers() -> None:
    by_name, by_numbers = MinHash.model_validate({"preset": "fineweb"}), MinHash(bands=14, rows=8)
    assert by_name.model_dump() == by_numbers.model_dump()
    assert fingerprint.digest(by_name) == fingerprint.digest(by_numbers)
    assert MinHash.model_validate(by_name.model_dump()) == by_numbers
    assert MinHash.model_validate({"preset": "fineweb", "rows": 9}).rows == 9


def test_the_optimum_is_datasketchs() -> None:
    from datasketch import MinHashLSH

    for threshold, hashes in ((0.8, 128), (0.5, 64)):
        theirs = MinHashLSH(threshold=threshold, num_perm=hashes)
        made = MinHash.model_validate({"hashes": hashes, "threshold": threshold})
        assert (made.bands, made.rows) == (theirs.b, theirs.r)


def test_a_recall_that_is_asked_for_is_given_with_the_most_rows() -> None:
    for target in (0.5, 0.9, 0.99):
        made = MinHash.model_validate({"hashes": 120, "threshold": 0.8, "target_recall": target})
        assert recall(0.8, made.bands, made.rows) >= target
        assert recall(0.8, 120 // (made.rows + 1), made.rows + 1) < target
    with pytest.raises(ValueError, match="cannot reach a recall"):
        parameters.for_recall(0.1, 4, 0.999)


@pytest.mark.parametrize(
    "given",
    [
        {"target_recall": 0.9},
        {"hashes": 128, "bands": 4},
        {"preset": "unknown"},
        {"hashes": 4, "threshold": 0.1, "target_recall": 0.999},
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MinHash.model_validate(given)
