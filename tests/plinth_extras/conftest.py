"""Tests of training features train the tiny run of the core's tests."""

from __future__ import annotations

from tests.plinth.training.conftest import make

__all__ = ["make"]
