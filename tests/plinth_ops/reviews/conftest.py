"""The workspace of the registry's tests, and a candidate that is approved."""

from tests.registry.conftest import ctx, line, make_line

__all__ = ["ctx", "line", "make_line"]
