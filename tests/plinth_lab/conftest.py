"""The tiny pipeline, run once, for experiments over its text."""

from tests.jobs.conftest import corpus

__all__ = ["corpus"]
