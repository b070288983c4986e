"""The released line of the registry's tests and its sealed export, for attackers."""

from __future__ import annotations

from tests.registry.conftest import ctx, line, make_line, unregistered
from tests.registry.exports.conftest import export

__all__ = ["ctx", "export", "line", "make_line", "unregistered"]
