"""Machines of one run in a bucket. Each has a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plinth.storage.workspace import CACHE_VARIABLE, Workspace, folder_of
from plinth.training.directory import RunDirectory
from tests.s3_server import Bucket, serving

RUN = "tiny-000000000000"


@pytest.fixture(scope="package")
def bucket() -> Iterator[Bucket]:
    with serving() as found:
        yield found


@pytest.fixture
def machine(bucket: Bucket, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], RunDirectory]:
    """The folder of this test's run on a machine of a name."""

    def on(name: str) -> RunDirectory:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CACHE_VARIABLE, str(tmp_path / name))
            root = Workspace(folder_of(bucket.uri(request.node.name.partition("[")[0]))).ensure().runs / RUN
        root.mkdir(exist_ok=True)
        return RunDirectory(root)

    return on
