"""The server of the launcher's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """SageMaker over HTTP, named by the environment variables that boto3 reads."""
    from sagemaker_server import ENVIRONMENT, serving

    with serving(tmp_path / "instances") as found:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": found.url}.items():
            monkeypatch.setenv(name, value)
        yield found
