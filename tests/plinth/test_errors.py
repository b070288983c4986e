"""Errors say found, expected and remedy, carry exit codes, and cross process boundaries."""

import pickle

import pytest
from pydantic import ValidationError

from plinth import errors
from plinth.records import Blob


def _kinds(kind: type[errors.PlinthError]) -> list[type[errors.PlinthError]]:
    return [kind, *(deep for child in kind.__subclasses__() for deep in _kinds(child))]


def test_message_has_every_row_that_is_known() -> None:
    error = errors.IntegrityError("x is torn", found="3 bytes", expected="4 bytes", remedy="delete it")
    assert str(error) == "x is torn\n  found:    3 bytes\n  expected: 4 bytes\n  do:       delete it"
    assert str(errors.MissingError("no x")) == "no x"


@pytest.mark.parametrize("kind", _kinds(errors.PlinthError))
def test_survives_pickling_with_its_fields(kind: type[errors.PlinthError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what", found=1, remedy="do it")))
    assert type(error) is kind
    assert (error.what, error.found, error.expected, error.remedy) == ("what", "1", None, "do it")


def test_survives_pickling_with_a_cause_that_cannot_be_pickled() -> None:
    with pytest.raises(ValidationError) as caught:
        Blob.model_validate({"md5": "x"})
    error = pickle.loads(pickle.dumps(errors.IntegrityError("broken", found=caught.value)))
    assert "sha256" in str(error)


def test_exit_codes_follow_the_branch() -> None:
    codes = {kind.__name__: kind.exit_code for kind in _kinds(errors.PlinthError)}
    assert codes["DiskFullError"] == codes["StorageError"] == 5
    assert codes["CheckpointError"] == 7
    assert codes["GateError"] == 8
    assert codes["RecipeError"] == 2
