"""The tiny pipeline up to its evaluation, which the tests of jobs use too."""

from tests.jobs.conftest import corpus, trained

__all__ = ["corpus", "trained"]
