"""A state that one layout has written, on another: every number arrives, and training goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import changed_layout
import pytest
import torch
from safetensors.torch import load_file, save_file

from plinth.errors import CheckpointError
from plinth.launch.parameters import Launch
from plinth.training.checkpoint.sharded_state import (
    MASTER,
    WHOLE,
    Captured,
    Shard,
    ShardedState,
    Share,
    file_name,
    key_of,
    write,
)
from plinth.training.config import RunConfig, layout_of
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

Make = Callable[..., RunConfig]

#: Nats; FP32 noise of another order of summation over twelve steps.
NOISE = 5e-7

#: Many engines in one process, on a machine that does other things.
TIMEOUT_S = 400.0


def layout(make: Make, ranks: int, precision: str = "fp32", **parallel: Any) -> RunConfig:
    return make(
        launch=Launch(ranks=ranks),
        parallel=Parallel(**parallel),
        precision=precision,
        batches="changed_layout:open_batches",
    )


def travel(folder: Path, routes: dict[str, list[RunConfig]]) -> dict[str, list[dict[str, Any]]]:
    """Train four steps on each layout of every route, from step 1 on; return the results of the leading rank for each
    leg.

    Legs on equally many ranks share their processes, if the start of each is available.
    """
    left = {name: list(enumerate(route)) for name, route in routes.items()}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in routes}
    ranks = 1
    while any(left.values()):
        names, legs = [], []
        for name, rest in left.items():
            while rest and rest[0][1].ranks == ranks:
                number, config = rest.pop(0)
                start = folder / name / f"leg-{number - 1}" if number else None
                legs.append((config, start, 4 * number + 1, 4 * number + 4, folder / name / f"leg-{number}"))
                names.append(name)
        answers = run_ranks(ranks, changed_layout.journey, legs, timeout_s=TIMEOUT_S)[0] if legs else []
        for name, answer in zip(names, answers, strict=True):
            found[name].append(answer)
        ranks = 3 - ranks
    return found


ROUTES: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "1, 2, 1 ranks": [(1, {}), (2, {}), (1, {})],
    "2, 1, 2 ranks": [(2, {}), (1, {}), (2, {})],
    "ZeRO 1, 3, 1": [(2, {"zero_stage": 1}), (2, {"zero_stage": 3}), (2, {"zero_stage": 1})],
    "ZeRO 3 on 2, 0 on 2, 2 on 1": [(2, {"zero_stage": 3}), (2, {"zero_stage": 0}), (1, {"zero_stage": 2})],
    "pipeline, data, tensor": [(2, {"pipeline": 2}), (2, {}), (2, {"tensor": 2})],
    "tensor, one, pipeline": [(2, {"tensor": 2, "zero_stage": 0}), (1, {}), (2, {"pipeline": 2, "zero_stage": 0})],
}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_routes_over_layouts_agree_with_one_rank(make: Make, tmp_path: Path) -> None:
    """The same documents, losses within noise; parameters and moments the same bits right after each conversion."""
    routes = {name: [layout(make, ranks, **parallel) for ranks, parallel in stops] for name, stops in ROUTES.items()}
    found = travel(tmp_path, {"one": [layout(make, 1)] * 3, **routes})
    one = found.pop("one")
    for name, legs in found.items():
        for ours, theirs in zip(legs, one, strict=True):
            assert ours["batch"] == theirs["batch"], name
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=NOISE), name
        for number in (1, 2):
            left, taken = (tmp_path / name / leg for leg in (f"leg-{number - 1}", f"leg-{number}-before"))
            assert changed_layout.same(changed_layout.whole_state(left), changed_layout.whole_state(taken)), (
                name,
                number,
            )
            before, after = (leg[key] for leg, key in ((legs[number], "before"), (legs[number - 1], "after")))
            assert before["parameters_sha256"] == after["parameters_sha256"], (name, number)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_layout_that_wrote_a_state_goes_on_bit_for_bit(make: Make, tmp_path: Path) -> None:
    """Four steps at once, and two, then two from the state: ZeRO stages, BF16, and pipelines."""
    kinds: list[tuple[str, dict[str, Any]]] = [("fp32", {"zero_stage": stage}) for stage in (0, 2, 3)]
    kinds += [("bf16", {"zero_stage": stage}) for stage in (0, 1, 3)]
    kinds += [("fp32", {"pipeline": 2}), ("bf16", {"pipeline": 2})]
    configs = [layout(make, 2, precision, **parallel) for precision, parallel in kinds]
    legs = []
    for number, config in enumerate(configs):
        left = tmp_path / f"{number}"
        legs += [(config, None, 1, 4, tmp_path / f"{number}-whole"), (config, None, 1, 2, left)]
        legs += [(config, left, 3, 4, tmp_path / f"{number}-resumed")]
    for rank in run_ranks(2, changed_layout.journey, legs, timeout_s=TIMEOUT_S):
        for number, kind in enumerate(kinds):
            through, first, second = rank[3 * number : 3 * number + 3]
            assert second["before"]["optimizer_sha256"] == first["after"]["optimizer_sha256"], kind
            for name in ("loss", "grad_norm", "batch"):
                assert second[name] == through[name][2:], (kind, name)
            assert second["after"]["parameters_sha256"] == through["after"]["parameters_sha256"], kind
            assert second["after"]["optimizer_sha256"] == through["after"]["optimizer_sha256"], kind


def test_a_layout_is_what_decides_the_order_of_sums(make: Make) -> None:
    one = layout_of(layout(make, 2))
    assert one == layout_of(make(run_id="other", launch=Launch(ranks=2), parallel=Parallel(activation_checkpointing=1)))
    others = [layout(make, 1), layout(make, 2, zero_stage=2), layout(make, 2, pipeline=2), layout(make, 2, tensor=2)]
    assert all(layout_of(config) != one for config in (*others, make(micro_batch_sequences=4)))


def share(name: str, values: torch.Tensor, start: int = 0, shard: Shard = WHOLE, shape: Any = None) -> Share:
    return Share(name, tuple(shape or values.shape), shard, start, {MASTER: values.reshape(-1)})


def save(folder: Path, *by_rank: list[Share]) -> None:
    """A state as ranks would write it."""
    for rank, held in enumerate(by_rank):
        tensors = {key_of(one, MASTER, one.start): one.state[MASTER] for one in held}
        write(Captured(tensors, {"shapes": {one.name: list(one.shape) for one in held}}), folder, rank)


def read(folder: Path, one: Share, size: int) -> torch.Tensor:
    target = torch.full((size,), -1.0)
    with ExitStack() as stack:
        ShardedState(stack, folder).fill(target, one, MASTER)
    return target


def test_ranges_of_three_writers_to_ranges_of_two_readers(tmp_path: Path) -> None:
    values = torch.arange(10.0).view(5, 2)
    flat = values.reshape(-1)
    save(tmp_path, *([share("w", flat[a:b], a, shape=(5, 2))] for a, b in ((0, 4), (4, 7), (7, 10))))
    assert read(tmp_path, share("w", flat[:5], 0), 5).tolist() == list(range(5))
    assert read(tmp_path, share("w", flat[5:], 5), 5).tolist() == list(range(5, 10))
    with ExitStack() as stack:
        assert torch.equal(ShardedState(stack, tmp_path).whole("w", MASTER), values)


@pytest.mark.parametrize("dim", [0, 1])
def test_shards_of_two_to_shards_of_three_and_to_none(tmp_path: Path, dim: int) -> None:
    """Uneven, as `torch.chunk` divides: 7 rows are 4 and 3, or 3, 3 and 1."""
    values = torch.arange(49.0).view(7, 7)
    halves = [part.contiguous() for part in values.chunk(2, dim)]
    save(tmp_path, *([share("w", half, shard=Shard(dim, part, 2))] for part, half in enumerate(halves)))
    for part, third in enumerate(values.chunk(3, dim)):
        got = read(tmp_path, share("w", third, 2, Shard(dim, part, 3)), third.numel() - 2)
        assert got.tolist() == third.reshape(-1)[2:].tolist()
    assert read(tmp_path, share("w", values), 49).tolist() == list(range(49))


def test_what_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    values = torch.arange(8.0)
    save(tmp_path, [share("w", values[:3], shape=(8,))], [share("w", values[5:], 5, shape=(8,))])
    with pytest.raises(CheckpointError, match="lacks master of w") as caught:
        read(tmp_path, share("w", values), 8)
    assert caught.value.found == "elements up to 3"
    with pytest.raises(CheckpointError, match="lacks master of other"):
        read(tmp_path, share("other", values), 8)
    save(tmp_path / "half", [share("w", values, shard=Shard(0, 1, 2))])
    with pytest.raises(CheckpointError, match="lacks master of w"):
        read(tmp_path / "half", share("w", values), 8)


def test_files_that_are_no_state_are_refused(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(CheckpointError, match="no engine state"):
        ShardedState(stack, tmp_path)
    path = tmp_path / file_name(0)
    path.write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with ExitStack() as stack, pytest.raises(CheckpointError, match="not a file with DeepSpeed engine state"):
        ShardedState(stack, tmp_path)
    save_file({"w": torch.zeros(1)}, path)
    with ExitStack() as stack, pytest.raises(CheckpointError, match="not a file with DeepSpeed engine state"):
        ShardedState(stack, tmp_path)
    save(tmp_path, [share("w", torch.zeros(1))])
    save_file(load_file(path), path, metadata={"plinth": '{"format": 9}'})
    with ExitStack() as stack, pytest.raises(CheckpointError, match="another format"):
        ShardedState(stack, tmp_path)
