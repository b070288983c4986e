"""Rounds from what lies in an exchange: the outer step of torch's Nesterov, and everything that is not averaged."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from federated_sites import contribution
from pydantic import ValidationError
from safetensors import safe_open
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.records import Blob
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint.sharded_state import MASTER
from plinth.training.federated.coordinator import Coordinator, coordinate
from plinth.training.federated.exchange import Exchange, Round
from plinth.training.federated.outer_step import RoundFiles, mean_of, next_common, next_momentum
from plinth.training.federated.parameters import Federated
from plinth.trust.pin import Trust

SITES = ("lima", "oslo", "pune")


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    return Exchange(str(tmp_path / "exchange"), Trust.of(Workspace(tmp_path / "workspace")))


def params(tmp_path: Path, **changes: Any) -> Federated:
    fields = {"site": "oslo", "sites": SITES, "exchange": str(tmp_path / "exchange"), "inner_steps": 2}
    return Federated.model_validate({**fields, **changes})


def weights(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in (("a", (3, 5)), ("b.gain", (7,)))}


def read(exchange: Exchange, blob: Blob, kind: str = MASTER) -> dict[str, Tensor]:
    with ExitStack() as stack:
        state = RoundFiles(stack, exchange.store).opened(blob)
        return {name: state.whole(name, kind) for name in state.names}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name].view(torch.int32), other[name].view(torch.int32)) for name in one
    )


def begun(exchange: Exchange, settings: Federated, start: Mapping[str, Tensor]) -> Round:
    """Round 0 of all sites."""
    for site in settings.sites:
        exchange.send(contribution(exchange, site, start))
    coordinator = Coordinator(exchange, settings)
    assert coordinator.receive() == []
    return coordinator.commit()


def test_the_outer_step_is_nesterov_of_torch() -> None:
    """FP64 against torch's own optimizer with the gradient x - mean, over six rounds."""
    lr, mu = 0.7, 0.9
    torch.manual_seed(0)
    theirs = torch.nn.Parameter(torch.randn(50, dtype=torch.float64))
    optimizer = torch.optim.SGD([theirs], lr=lr, momentum=mu, nesterov=True)
    common, momentum = theirs.detach().float(), None
    theirs.data.copy_(common)
    for _ in range(6):
        sites = [common + torch.randn(50) for _ in range(3)]
        mean = mean_of(sites)
        momentum = next_momentum(common, momentum, mean, mu)
        theirs.grad = common.double() - mean
        optimizer.step()
        common = next_common(common, momentum, mean, lr, mu)
        assert torch.allclose(common.double(), theirs.detach(), rtol=0, atol=2e-5)
        assert not torch.equal(common.double(), mean)


def test_rate_1_without_momentum_is_the_mean_and_of_one_site_its_own_bits() -> None:
    """Also where x + (m - x) would not be m: weights of other sizes, the least numbers, and minus zero."""
    site = torch.tensor([1e-30, 1.0, -0.0, -0.0, 1e-45, 3e38, -7.5])
    common = torch.tensor([1.0, 1e-30, 1.0, -1.0, -3e38, -3e38, 0.1])
    made = next_common(common, None, mean_of([site]), 1.0, 0.0)
    assert torch.equal(made.view(torch.int32), site.view(torch.int32))
    assert not torch.equal((common + (site - common)).view(torch.int32), site.view(torch.int32))


def test_rounds_go_through_files_and_a_killed_coordinator_makes_the_same(exchange: Exchange, tmp_path: Path) -> None:
    settings, start = params(tmp_path), weights(0)
    first = begun(exchange, settings, start)
    assert same(read(exchange, first.common), start)
    assert first.momentum is None
    common, momentum = start, dict.fromkeys(start)
    for number in (1, 2):
        base = exchange.round(number - 1)[0].common.sha256
        sent = {site: weights(10 * number + at) for at, site in enumerate(SITES)}
        for site, values in sent.items():
            exchange.send(contribution(exchange, site, values, round=number, base=base, step=2 * number))
        killed = Coordinator(exchange, settings)
        killed.receive()
        with ExitStack() as stack:
            written = killed._outer_step(RoundFiles(stack, exchange.store))  # and no record: nothing is committed
        assert exchange.newest() == number - 1
        coordinator = Coordinator(exchange, settings)
        coordinator.receive()
        made = coordinator.commit()
        assert (made.common, made.momentum) == written
        means = {name: mean_of([sent[site][name] for site in SITES]) for name in start}
        momentum = {name: next_momentum(common[name], momentum[name], means[name], 0.9) for name in start}
        common = {name: next_common(common[name], momentum[name], means[name], 0.7, 0.9) for name in start}
        assert same(read(exchange, made.common), common)
        assert made.momentum is not None
        assert same(read(exchange, made.momentum, "momentum"), momentum)
        assert made.before == exchange.round(number - 1)[1].sha256
    killed.receive()
    assert killed.commit() == exchange.round(2)[0]  # it comes to life again: the first record stays


def test_a_lost_site_costs_its_round_and_nothing_else(exchange: Exchange, tmp_path: Path) -> None:
    settings = params(tmp_path, outer_lr=1.0, outer_momentum=0.0)
    base = begun(exchange, settings, weights(0)).common.sha256
    sent = {site: weights(at) for at, site in enumerate(("lima", "oslo"), 1)}
    for site, values in sent.items():
        exchange.send(contribution(exchange, site, values, round=1, base=base, step=2))
    rounds: list[Round] = []

    def tell(made: Round) -> None:
        rounds.append(made)
        for site in SITES:  # the lost one too: it goes on from the common weights
            fields = {"round": 2, "base": made.common.sha256, "step": 4, "ends": True}
            exchange.send(contribution(exchange, site, weights(5), **fields))

    last = coordinate(Coordinator(exchange, settings), 0.0, tell, poll_s=0.0)
    assert rounds[0].missing == ("pune",)
    assert sorted(rounds[0].taken) == ["lima", "oslo"]
    mean = {name: mean_of([sent["lima"][name], sent["oslo"][name]]).float() for name in sent["oslo"]}
    assert same(read(exchange, rounds[0].common), mean)
    assert (last.round, last.missing, sorted(last.taken), last.ended) == (2, (), list(SITES), SITES)


def test_what_must_not_be_averaged_is_refused_by_name(exchange: Exchange, tmp_path: Path) -> None:
    settings = params(tmp_path, sites=tuple("abcdefg"), site="a", outer_lr=1.0, outer_momentum=0.0)
    first = begun(exchange, settings, weights(0))
    fine = {"round": 1, "base": first.common.sha256}
    nan, short = weights(2), weights(3)
    nan["a"][2, 4] = float("nan")
    short["a"] = short["a"][:2]
    for site, values, fields in (
        ("a", weights(1), fine),
        ("b", weights(1), fine | {"base": "0" * 64}),
        ("c", nan, fine),
        ("d", short, fine),
        ("e", {"a": weights(4)["a"]}, fine),
        ("f", weights(6), fine),
    ):
        made = contribution(exchange, site, values, **fields)
        exchange.send(made)
    changed = exchange.store.path(made.files[1])
    changed.chmod(0o644)
    changed.write_bytes(changed.read_bytes()[:-1] + b"\x01")
    own = json.loads((tmp_path / "exchange/contributions/00001/a.json").read_bytes())
    own["payload"] = base64.b64encode(base64.b64decode(own["payload"]).replace(b'"a"', b'"g"')).decode()
    (tmp_path / "exchange/contributions/00001/g.json").write_text(json.dumps(own))
    coordinator = Coordinator(exchange, settings)
    assert coordinator.receive() == []
    result = coordinator.commit()
    assert list(result.taken) == ["a"]
    assert same(read(exchange, result.common), weights(1))
    for site, reason in {
        "b": "it began from other common weights: found 000000000000",
        "c": "a is not finite",
        "d": "a has shape (2, 5)",
        "e": "other parameters than the common weights: found b.gain",
        "f": "changed|differs|SHA-256",
        "g": "the signature of .* does not hold",
    }.items():
        assert re.search(reason if site in "fg" else re.escape(reason), result.refused[site]), result.refused[site]


def test_sites_that_begin_from_different_weights_are_named(exchange: Exchange, tmp_path: Path) -> None:
    for at, site in enumerate(SITES):
        exchange.send(contribution(exchange, site, weights(at // 2)))
    coordinator = Coordinator(exchange, params(tmp_path))
    coordinator.receive()
    with pytest.raises(CheckpointError, match="sites lima and pune begin from different weights"):
        coordinator.commit()
    assert exchange.newest() == -1


def test_a_round_without_weights_and_a_federation_without_its_site_are_refused(
    exchange: Exchange, tmp_path: Path
) -> None:
    exchange.send(contribution(exchange, "oslo", weights(0), base="0" * 64))
    coordinator = Coordinator(exchange, params(tmp_path, sites=("oslo",)))
    coordinator.receive()
    with pytest.raises(CheckpointError, match="round 0 has no weights to average"):
        coordinator.commit()
    with pytest.raises(ValidationError, match="expected there, each name once"):
        params(tmp_path, site="kiel")
    with pytest.raises(ValidationError, match="exchange"):
        params(tmp_path, exchange="here")


def test_tensors_and_numbers_cross_and_nothing_else(exchange: Exchange, tmp_path: Path) -> None:
    """Every byte in the exchange: files of master weights by name, and signed records with these keys."""
    begun(exchange, params(tmp_path), weights(0))
    names = {"site", "round", "base", "step", "ends", "files", "at"}
    for path in (tmp_path / "exchange").rglob("*"):
        if path.is_dir() or path.name == "lock" or path.suffix == ".lock":
            continue
        if path.suffix == ".json":
            statement = json.loads(base64.b64decode(json.loads(path.read_bytes())["payload"]))
            kind = statement["predicateType"].split(":")[2]
            expected = names if kind == "federated-contribution" else set(Round.model_fields)
            assert set(statement["predicate"]) == expected
            assert all(name["name"].endswith(".safetensors") for name in statement["subject"])
        else:
            with safe_open(path, framework="pt") as file:
                assert set(json.loads(file.metadata()["plinth"])) == {"format", "shapes"}
                held = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                assert {key.rpartition("/0.0.1/")[0] for key in held} == {"a/master", "b.gain/master"}
                assert sum(values.numel() for values in held.values()) in (10, 12, 22)
                assert all(values.dtype == torch.float32 for values in held.values())
