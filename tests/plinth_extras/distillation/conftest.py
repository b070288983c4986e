"""The environment of a training job, as the tests of training have it."""

from tests.plinth.training.conftest import job_environment  # noqa: F401
