"""Fixtures of the core that these tests use: a command line."""

from tests.jobs.cli.conftest import plinth

__all__ = ["plinth"]
