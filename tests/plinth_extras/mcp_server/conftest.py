"""A workspace with a candidate, run once for all tests, and a client over stdio."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from plinth.storage.workspace import CACHE_VARIABLE, TRUST_VARIABLE
from tests.jobs.conftest import ROOT, pending
from tests.s3_server import ENVIRONMENT as S3

__all__ = ["pending"]


@pytest.fixture
def client(trust_folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """`client(workspace, *options)`: the official client, connected to `plinth mcp` in another process."""
    from mcp import Client, StdioServerParameters, stdio_client

    @asynccontextmanager
    async def connect(workspace: Path | str, *options: str) -> AsyncIterator[Any]:
        bucket = {name: os.environ[name] for name in (CACHE_VARIABLE, *S3, "AWS_ENDPOINT_URL") if name in os.environ}
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "plinth_jobs.cli", "mcp", "-w", str(workspace), *options],
            env={TRUST_VARIABLE: str(trust_folder), **bucket},
            cwd=ROOT,
        )
        with (tmp_path / "server.log").open("w") as log:
            async with Client(stdio_client(server, errlog=log)) as connected:
                yield connected

    return connect
