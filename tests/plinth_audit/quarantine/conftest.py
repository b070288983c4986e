"""A tiny corpus, of the core's tests."""

from tests.plinth.corpus.conftest import tiny

__all__ = ["tiny"]
