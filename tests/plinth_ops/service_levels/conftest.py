"""Fixtures of the registry that these tests use: a candidate, and a server for it."""

from tests.registry.conftest import ctx, line, make_line, mlflow_uri, mlflow_workspace

__all__ = ["ctx", "line", "make_line", "mlflow_uri", "mlflow_workspace"]
