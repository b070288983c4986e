"""The asset's data version is a function of the checkpoint; measurements are a separate record."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.evaluation import serving
from plinth.records import Manifest
from plinth_assets.measurements import serving_stage as assets
from plinth_jobs.recipes import find, load


@pytest.mark.exhaustive
@pytest.mark.slow
def test_measured_once_and_shown_beside_an_asset_that_it_does_not_change(
    ctx: Context,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (stage,) = assets.stages(load(find("tiny")))
    given, said = checkpoint(model_directory()), []
    made = stage.make(ctx, {"checkpoint": given}, said.append)
    assert "tokens/s" in said[0]
    here = serving.read(ctx, given.digest)
    assert here is not None
    assert here["tokens_per_s"]["1"] > 0
    assert stage.present is not None
    assert {"devices", "measured_here", "kv_bytes_per_token"} <= set(stage.present(ctx, made))

    def never(*args: object) -> None:
        raise AssertionError("measured twice")

    monkeypatch.setattr(serving, "measure", never)
    assert stage.make(ctx, {"checkpoint": given}, said.append).digest == made.digest
    serving.path(ctx, given.digest).write_text("{broken")
    assert serving.read(ctx, given.digest) is None
    assert "measured_here" not in stage.present(ctx, made)
