"""Names of slices: free ones only, for they become columns and keys."""

import pytest
from pydantic import ValidationError

from plinth.evaluation.parameters import BUILT_IN, Evaluation


@pytest.mark.parametrize("name", [*BUILT_IN, "Big", "a b", "", "x" * 41])
def test_names_that_are_taken_or_no_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Evaluation(slices={name: "pii.spans > 0"})


def test_others_are_taken_as_they_are() -> None:
    assert Evaluation(slices={"personal_data": "pii.spans > 0"}).slices == {"personal_data": "pii.spans > 0"}


def test_other_parts_of_the_section_do_not_score_held_out_text_again() -> None:
    assert Evaluation().of_held_out() == {"max_bytes_per_slice": 2**20, "slices": {}}
    assert Evaluation(slices={"a": "pii.spans > 0"}).of_held_out()["slices"] == {"a": "pii.spans > 0"}
