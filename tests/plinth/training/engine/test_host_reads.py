"""The host never waits for the device inside a step: nothing on the device is read until the step's numbers are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import watched_reads

from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Telemetry
from tests.ranks import RankFailed, run_ranks

#: Every step measures layers and packs documents.
FULL = {"telemetry": Telemetry(layers_every=1), "total_steps": 4}


def table(make: Callable[..., RunConfig], precision: str) -> dict[str, RunConfig]:
    return {
        f"zero {stage} {precision}": make(parallel=Parallel(zero_stage=stage), precision=precision, **FULL)  # type: ignore[arg-type]
        for stage in (0, 1, 2, 3)
    }


@pytest.mark.exhaustive
@pytest.mark.slow
def test_steps_read_nothing_on_the_host(make: Callable[..., RunConfig]) -> None:
    configs = table(make, "fp32") | table(make, "bf16")
    answers = run_ranks(2, watched_reads.train_all, configs, False)
    assert answers[0] == answers[1]
    for precision, close in (("fp32", 1e-5), ("bf16", 2e-2)):
        first = answers[0][f"zero 0 {precision}"]
        for stage in (1, 2, 3):
            assert answers[0][f"zero {stage} {precision}"] == pytest.approx(first, rel=close)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_watch_sees_a_read(make: Callable[..., RunConfig]) -> None:
    with pytest.raises(RankFailed, match="HostRead: aten::_local_scalar_dense"):
        run_ranks(2, watched_reads.train_all, {"one": table(make, "fp32")["zero 1 fp32"]}, True)


def test_what_comes_of_the_device_is_followed() -> None:
    device, host = torch.ones(4), torch.zeros(4)
    with watched_reads.reads_forbidden([device]):
        assert float(host.sum()) == 0.0  # the host's own
        assert torch.equal(host, torch.zeros(4))
        for read in (
            lambda: float((device * 2)[1:].sum()),
            lambda: host.add(device).tolist(),
            lambda: device[device > 0],
            lambda: bool(torch.isfinite(device).all()),
            lambda: torch._foreach_norm([device])[0].item(),
        ):
            with pytest.raises(watched_reads.HostRead):
                read()
        host.add_(device)
        with pytest.raises(watched_reads.HostRead):
            host.numpy()
