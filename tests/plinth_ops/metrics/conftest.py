"""The workspace of the registry's tests."""

from tests.registry.conftest import ctx

__all__ = ["ctx"]
