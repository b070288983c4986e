"""Which failures are results of an arm."""

import pytest

from assets import experiment
from plinth import errors


@pytest.mark.parametrize(
    ("kind", "is_result"),
    [
        (errors.CheckFailedError, True),
        (errors.StageError, True),
        (errors.TrainingError, True),
        (errors.RecipeError, True),
        (errors.BudgetError, False),
        (errors.StoppedRunError, False),
        (errors.LaunchError, False),
        (errors.CheckpointError, False),
        (errors.WorkerError, False),
        (errors.DiskFullError, False),
        (errors.SignatureError, False),
    ],
)
def test_outages_are_no_results(kind: type[errors.PlinthError], is_result: bool) -> None:
    assert (issubclass(kind, experiment.OF_THE_ARM) and not issubclass(kind, experiment.NOT_OF_THE_ARM)) == is_result
