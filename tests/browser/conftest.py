"""The corpus of the tiny pipeline, which the tests of jobs use too."""

from tests.jobs.conftest import corpus

__all__ = ["corpus"]
