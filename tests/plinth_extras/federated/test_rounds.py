"""Rounds from the files of an exchange: the outer step of torch's Nesterov, and everything that is not averaged."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import federated_sites
import pytest
import torch
from federated_sites import contribution
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.records import Blob
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint.sharded_state import MASTER
from plinth.trust.root import Trust
from plinth_extras.federated import coordinator as coordinators
from plinth_extras.federated.coordinator import Coordinator, RoundFiles, coordinate, mean_of, next_common, next_momentum
from plinth_extras.federated.exchange import Exchange, Federated, Round, prune
from tests.ranks import RankFailed, run_ranks
from tests.s3_server import serving

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


def rounds_of(
    exchange: Exchange, settings: Federated, goes_back: Callable[[int], int], last: int = 9
) -> tuple[list[Round], list[int]]:
    """The rounds of sites that end in the last, and the bytes in the exchange's store when each was committed, and at
    the end."""
    rounds, sizes = list[Round](), list[int]()

    def send(number: int, base: str) -> None:
        for at, site in enumerate(settings.sites):
            values = weights(10 * number + at if number else 0)
            fields = {"round": number, "base": base, "ends": number == last, "goes_back_to": goes_back(number)}
            exchange.send(contribution(exchange, site, values, **fields))

    def tell(made: Round) -> None:
        rounds.append(made)
        sizes.append(stored(exchange))
        if made.round < last:
            send(made.round + 1, made.common.sha256)

    send(0, "")
    coordinate(Coordinator(exchange, settings), 60.0, tell, poll_s=0.0)
    return rounds, [*sizes, stored(exchange)]


def stored(exchange: Exchange) -> int:
    return sum(path.stat().st_size for path in exchange.store.files.rglob("*") if path.is_file())


def test_an_exchange_keeps_what_a_site_may_go_back_to_and_the_same_rounds_come_of_it(
    tmp_path: Path, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over ten rounds of three sites: 3,432 bytes after each since the third; unpruned they grow to 22,736."""
    settings = params(tmp_path)
    pruned, sizes = rounds_of(exchange, settings, lambda number: max(0, number - 1))
    last = pruned[-1]
    assert last.momentum is not None
    held = {round_.common for round_ in pruned[8:]} | {last.momentum}
    assert sizes[-1] == sum(blob.bytes for blob in held)  # two rounds' common weights, and the momentum
    assert len(set(sizes[3:-1])) == 1
    assert all(exchange.store.has(blob) for blob in held)
    assert not any(exchange.store.has(one.common) for one in pruned[:8])
    monkeypatch.setattr(coordinators, "prune", lambda exchange, sites: 0)
    other = Exchange(str(tmp_path / "unpruned"), Trust.of(Workspace(tmp_path / "workspace")))
    whole, all_sizes = rounds_of(other, settings, lambda number: 0)
    assert [(one.common, one.momentum) for one in whole] == [(one.common, one.momentum) for one in pruned]
    assert (max(sizes), all_sizes[-1]) == (3432, 22736)
    monkeypatch.undo()
    # at once, after a coordinator that never pruned: what sites sent, and old momentum; they may go back to round 0
    assert prune(other, settings.sites) > 0
    assert all(other.store.has(one.common) for one in whole)
    assert stored(other) == sum(blob.bytes for blob in {one.common for one in whole} | {last.momentum})
    assert prune(other, settings.sites) == 0


def test_a_site_that_may_come_back_or_never_came_keeps_the_weights_that_it_needs(
    exchange: Exchange, tmp_path: Path
) -> None:
    settings = params(tmp_path)
    base = begun(exchange, settings, weights(0)).common.sha256
    made = []
    for number in (1, 2, 3):
        for at, site in enumerate(("lima", "oslo")):  # pune is lost after round 0, to which it goes back
            fields = {"round": number, "base": base, "goes_back_to": number}
            exchange.send(contribution(exchange, site, weights(10 * number + at), **fields))
        coordinator = Coordinator(exchange, settings)
        coordinator.receive()
        made.append(coordinator.commit())
        base = made[-1].common.sha256
    for sites in (settings.sites, ("lima", "oslo", "kiel")):
        prune(exchange, sites)
        assert all(exchange.store.has(exchange.round(number)[0].common) for number in range(4))
    waiting = contribution(exchange, "oslo", weights(40), round=4, base=base)
    exchange.send(waiting)
    prune(exchange, ("lima", "oslo"))  # pune is given up
    assert [exchange.store.has(exchange.round(number)[0].common) for number in range(4)] == [False] * 3 + [True]
    assert all(map(exchange.store.has, waiting.files))


def test_a_coordinator_whose_round_another_one_made_and_pruned_goes_on(exchange: Exchange, tmp_path: Path) -> None:
    settings = params(tmp_path)
    base = begun(exchange, settings, weights(0)).common.sha256
    for at, site in enumerate(SITES):
        exchange.send(contribution(exchange, site, weights(at), round=1, base=base, goes_back_to=1))
    slow, fast = Coordinator(exchange, settings), Coordinator(exchange, settings)
    slow.receive()
    fast.receive()
    made = fast.commit()
    assert prune(exchange, settings.sites) > 0
    assert slow.commit() == made
    assert slow.number == 2


@pytest.mark.parametrize(
    "boundaries",
    [pytest.param((5, 13), marks=pytest.mark.slow), pytest.param(range(1, 20), marks=pytest.mark.exhaustive)],
)
def test_a_coordinator_that_is_killed_at_any_write_of_a_round_leaves_it_to_the_next(
    exchange: Exchange, tmp_path: Path, boundaries: Sequence[int]
) -> None:
    """Processes of their own, SIGKILL before and in the middle of writes; the round is that of one undisturbed."""
    settings = params(tmp_path)
    base = begun(exchange, settings, weights(0)).common.sha256
    for at, site in enumerate(SITES):
        exchange.send(contribution(exchange, site, weights(at), round=1, base=base, ends=True))
    shutil.copytree(tmp_path / "exchange", tmp_path / "undisturbed")
    undisturbed = Exchange(str(tmp_path / "undisturbed"), Trust.of(Workspace(tmp_path / "workspace")))
    coordinator = Coordinator(undisturbed, settings)
    coordinator.receive()
    expected = coordinator.commit()
    workspace = str(tmp_path / "workspace")
    for boundary in boundaries:
        with pytest.raises(RankFailed, match="ended without an answer"):
            run_ranks(1, federated_sites.coordinate_until_killed, workspace, settings, boundary)
        assert exchange.newest() == 0
    assert run_ranks(1, federated_sites.coordinate_until_killed, workspace, settings, 0)[0] > 13
    made = exchange.round(1)[0]
    assert (made.common, made.momentum, made.taken) == (expected.common, expected.momentum, expected.taken)


@pytest.mark.slow
def test_an_exchange_on_s3_makes_the_rounds_of_a_folder(exchange: Exchange, tmp_path: Path) -> None:
    """Over HTTP: the same digests; what is pruned is gone from the bucket, and all objects are records or tensors."""
    settings = params(tmp_path, sites=("lima", "oslo"))
    pruned, _ = rounds_of(exchange, settings, lambda number: max(0, number - 1), 3)
    with serving() as bucket:
        far = Exchange(bucket.uri("first"), Trust.of(Workspace(tmp_path / "workspace")))
        assert far.store != exchange.store
        made, _ = rounds_of(far, settings, lambda number: max(0, number - 1), 3)
        assert [(one.common, one.momentum, one.ended) for one in made] == [
            (one.common, one.momentum, one.ended) for one in pruned
        ]
        again = Exchange(bucket.uri("first"), Trust.of(Workspace(tmp_path / "other"))).store
        assert [again.has(one.common) for one in made] == [False] * 2 + [True] * 2
        assert same(read(far, made[-1].common), read(exchange, pruned[-1].common))
        listed = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
        assert {one["Key"].split("/")[1] for one in listed} == {"contributions", "rounds", "store"}
        for one in listed:
            data = bucket.get(one["Key"])
            folder = one["Key"].split("/")[1]
            held = set(load(data)) if folder == "store" else set(json.loads(data))
            expected = {"a/", "b.gain/"} if folder == "store" else {"payload", "payloadType", "signatures"}
            assert {name[: name.index("/") + 1] if folder == "store" else name for name in held} == expected


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
        "b": "the contribution has other base weights: found 000000000000",
        "c": "a is not finite",
        "d": "a has shape (2, 5)",
        "e": "parameters other than those of the common weights: found b.gain",
        "f": "changed|differs|SHA-256",
        "g": "the signature of .* is invalid",
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
    with pytest.raises(ValidationError, match="must include site kiel, without duplicates"):
        params(tmp_path, site="kiel")
    with pytest.raises(ValidationError, match="exchange"):
        params(tmp_path, exchange="here")


def test_tensors_and_numbers_cross_and_nothing_else(exchange: Exchange, tmp_path: Path) -> None:
    """Every byte in the exchange: files of master weights by name, and signed records with these keys."""
    begun(exchange, params(tmp_path), weights(0))
    names = {"site", "round", "base", "step", "goes_back_to", "ends", "files", "at"}
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
