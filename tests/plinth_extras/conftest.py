"""The tiny run of the core's tests, and the command line."""

from __future__ import annotations

from tests.jobs.cli.conftest import plinth
from tests.plinth.training.conftest import make

__all__ = ["make", "plinth"]
