"""Runs as sites of a federation: alone they are plain training, together they go on from the same weights."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import federated_sites
import pytest

from plinth.launch.parameters import Launch
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig, identity
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import timeline
from plinth.trust.root import Trust
from plinth_extras.federated.coordinator import Coordinator, coordinate
from plinth_extras.federated.exchange import Exchange, Federated, Round
from tests.ranks import RankFailed, run_ranks

STATE = ("parameters_sha256", "optimizer_sha256", "rng_sha256")


@pytest.fixture
def make_site(make: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., RunConfig]:
    """A run of four steps that commits each second one."""

    def made(workspace: str, federated: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
        given = federated and Federated.model_validate({"exchange": str(tmp_path / "exchange"), **federated})
        saves = Checkpoints(every_steps=2, audit_steps=2)
        fields = {"total_steps": 4, "checkpoints": saves, "federated": given, "launch": Launch(ranks=1)}
        config = make(workspace=tmp_path / workspace, **{**fields, **changes})
        config.directory.root.mkdir(parents=True)
        return config

    return made


def rounds(config: RunConfig, wait_s: float = 600.0) -> list[Round]:
    """The rounds of a run's federation, made until its sites have ended."""
    assert config.federated is not None
    exchange = Exchange(config.federated.exchange, Trust.of(Workspace(config.workspace)))
    made: list[Round] = []
    coordinate(Coordinator(exchange, config.federated), wait_s, made.append, poll_s=0.02)
    return made


def saved(config: RunConfig, step: int) -> dict[str, Any]:
    return checkpoint.read_state(config.directory, step)


@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_site_one_step_rate_1_is_plain_training_bit_for_bit(
    make_site: Callable[..., RunConfig], precision: str
) -> None:
    block = {"site": "oslo", "sites": ("oslo",), "inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
    plain, site = make_site("plain", precision=precision), make_site("oslo", block, precision=precision)
    with ThreadPoolExecutor() as pool:
        made = pool.submit(rounds, site)
        assert run_ranks(1, federated_sites.train, site) == [True]
    assert run_ranks(1, federated_sites.train, plain) == [True]
    assert [one.round for one in made.result()] == [0, 1, 2, 3, 4]
    for step in (2, 4):
        assert [saved(site, step)[name] for name in STATE] == [saved(plain, step)[name] for name in STATE]
    losses = [[event["loss"] for event in timeline(run.directory.events).steps.values()] for run in (plain, site)]
    assert losses[0] == losses[1]
    assert saved(site, 4)["monitor"]["federated"]["round"] == 4


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_sites_end_with_the_same_weights_and_a_stop_while_waiting_loses_nothing(
    make_site: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Each keeps its own optimizer. One of two ranks under ZeRO-1; the other is stopped while it waits, and goes on."""
    block = {"sites": ("lima", "oslo"), "inner_steps": 2}
    oslo = make_site("oslo", {"site": "oslo", **block}, launch=Launch(ranks=2))
    lima = make_site("lima", {"site": "lima", **block}, batches="changed_layout:open_batches")
    sent = tmp_path / "exchange" / "contributions" / "00000" / "lima.json"
    assert run_ranks(1, federated_sites.train, lima, sent) == [False]  # no site creates round 0
    assert timeline(lima.directory.events).steps == {}
    with ThreadPoolExecutor() as pool:
        made = pool.submit(rounds, oslo)
        sites = [pool.submit(run_ranks, config.ranks, federated_sites.train, config) for config in (oslo, lima)]
        assert [site.result() for site in sites] == [[True, True], [True]]
    assert [sorted(one.taken) for one in made.result()] == [["lima", "oslo"]] * 3
    for step in (2, 4):
        ours, theirs = saved(oslo, step), saved(lima, step)
        assert ours["parameters_sha256"] == theirs["parameters_sha256"]
        assert ours["optimizer_sha256"] != theirs["optimizer_sha256"]
    events = timeline(lima.directory.events).of("averaged")
    assert [(event["step"], event["round"], event["missing"]) for event in events] == [
        *[(0, 0, []), (2, 1, []), (4, 2, [])]
    ]
    run_ranks(1, federated_sites.audit, lima)
    assert json.loads(lima.directory.evidence.read_bytes())["bit_exact"]
    assert saved(lima, 4)["parameters_sha256"] != saved(lima, 2)["parameters_sha256"]


@pytest.mark.parametrize(
    ("instants", "ranks"),
    [
        pytest.param(["sent"], 1, marks=pytest.mark.slow),
        pytest.param(list(federated_sites.INSTANTS), 1, marks=pytest.mark.exhaustive),
        pytest.param(list(federated_sites.INSTANTS), 2, marks=pytest.mark.exhaustive),
    ],
)
def test_a_site_that_is_killed_in_a_round_takes_part_again_with_the_same_result(
    make_site: Callable[..., RunConfig], tmp_path: Path, instants: list[str], ranks: int
) -> None:
    """SIGKILL at each of these instants of round 1, one after the other; then the end is that of one undisturbed."""
    block = {"site": "oslo", "sites": ("oslo",), "inner_steps": 2}
    quiet = make_site("quiet", {**block, "exchange": str(tmp_path / "other")}, launch=Launch(ranks=ranks))
    struck = make_site("struck", block, launch=Launch(ranks=ranks))
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(rounds, run) for run in (quiet, struck)]
        assert run_ranks(ranks, federated_sites.train, quiet) == [True] * ranks
        for instant in instants:
            # round 0 is written down once; it is sent in the first attempt, and adopted again in each
            first = instant == instants[0]
            number = 1 + (first or instant == "adopted, not saved")
            with pytest.raises(RankFailed, match="ended without an answer"):
                run_ranks(ranks, federated_sites.train_until_killed, struck, instant, number)
            assert checkpoint.committed(struck.directory) == []
        assert run_ranks(ranks, federated_sites.train, struck) == [True] * ranks
    expected, found = (one.result() for one in made)
    assert [(one.round, one.common, one.momentum, one.missing, sorted(one.taken)) for one in found] == [
        (one.round, one.common, one.momentum, (), ["oslo"]) for one in expected
    ]
    for step in (2, 4):
        assert [saved(struck, step)[name] for name in STATE] == [saved(quiet, step)[name] for name in STATE]
    assert not [path for path in (tmp_path / "exchange" / "store" / "staging").rglob("*") if path.is_file()]


@pytest.mark.exhaustive
def test_a_round_goes_on_without_a_killed_site_which_comes_back(make_site: Callable[..., RunConfig]) -> None:
    """Its round is lost and recorded, on both sides; the next one has both, and the same weights."""
    block = {"sites": ("lima", "oslo"), "inner_steps": 2}
    oslo, lima = (make_site(site, {"site": site, **block}) for site in ("oslo", "lima"))
    assert oslo.federated is not None
    trust = Trust.of(Workspace(oslo.workspace))
    coordinator = Coordinator(Exchange(oslo.federated.exchange, trust), oslo.federated)

    def wait(missing: list[str]) -> Round:
        while coordinator.receive() != missing:
            time.sleep(0.05)
        return coordinator.commit()

    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_ranks, 1, federated_sites.train, oslo)
        lost = pool.submit(run_ranks, 1, federated_sites.train_until_killed, lima, "weights to be written", 2)
        assert wait([]).missing == ()
        with pytest.raises(RankFailed, match="ended without an answer"):
            lost.result()
        assert wait(["lima"]).missing == ("lima",)
        rest = pool.submit(coordinate, coordinator, 600.0, lambda made: None, 0.02)
        assert run_ranks(1, federated_sites.train, lima) == [True]
        assert running.result() == [True]
    assert sorted(rest.result().taken) == ["lima", "oslo"]
    left_out = {event["step"]: event.get("left_out") for event in timeline(lima.directory.events).of("averaged")}
    assert left_out == {0: None, 2: "lima", 4: None}
    assert saved(lima, 4)["parameters_sha256"] == saved(oslo, 4)["parameters_sha256"]
    run_ranks(1, federated_sites.audit, lima)  # the exchange was pruned, and has what it adopts again
    assert json.loads(lima.directory.evidence.read_bytes())["bit_exact"]


def test_the_exchange_bears_no_identity_and_the_rounds_do(make_site: Callable[..., RunConfig]) -> None:
    block = {"site": "oslo", "sites": ("oslo",)}
    one, moved = make_site("a", block), make_site("b", {**block, "exchange": f"{os.sep}elsewhere"})
    other = make_site("c", {**block, "inner_steps": 7})
    assert identity(one) == identity(moved) != identity(other)
    assert identity(one) != identity(make_site("d"))
