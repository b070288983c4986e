"""Engines that are opened on ranks while every tensor they make is counted."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plinth.model.division import Initial, Placement, Role, declarations, initialise
from plinth.model.parameters import Model
from plinth.training.config import RunConfig
from plinth.training.parallel.divided_decoder import divided_decoder, fill_range
from plinth.training.parallel.topology import Topology
from plinth.training.parameters.parallel import Parallel


class Live(TorchDispatchMode):
    """Bytes of all live tensors that operations within have created; `peak` is their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        new = False
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                reference = StorageWeakRef(leaf.untyped_storage())
                new |= reference.cdata not in self._held
                self._held.setdefault(reference.cdata, (reference, leaf.untyped_storage().nbytes()))
        if new:
            self._held = {key: pair for key, pair in self._held.items() if not pair[0].expired()}
            self.peak = max(self.peak, sum(size for _, size in self._held.values()))
        return made


def open_all(configs: dict[str, RunConfig]) -> dict[str, Any]:
    """On one rank, of every configuration: digest of the whole parameters, and most bytes before DeepSpeed began."""
    import deepspeed

    from plinth.training.checkpoint import snapshot
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine

    rank, take, answers = engines.join(next(iter(configs.values()))), deepspeed.initialize, {}
    for name, config in configs.items():
        live, peaks = Live(), []

        def begin(*, live: Live = live, peaks: list[int] = peaks, **given: Any) -> Any:
            peaks.append(live.peak)
            return take(**given)

        deepspeed.initialize = begin
        with live:
            engine = open_engine(config, rank)
        answers[name] = (snapshot.parameters_digest(engine.parameters()), peaks[0])
        engine.deepspeed.destroy()
    deepspeed.initialize = take
    engines.leave()
    return answers


class Counting(Initial):
    """Writes nothing; keeps the bytes that it would have written, by parameter."""

    def fill(self, target: torch.Tensor, name: str, role: Role, placement: Placement) -> None:
        self.written[name] = target.numel() * target.element_size()

    def __init__(self, config: Model) -> None:
        super().__init__(config, 1)
        self.written: dict[str, int] = {}


def plan_all(model: Model, vocab_size: int, layouts: dict[str, tuple[Parallel, int, list[int]]]) -> dict[str, Any]:
    """By layout and rank, of many pretended ones: elements held, bytes the empty model takes, bytes written."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    answers = {}
    for name, (parallel, world, ranks) in layouts.items():
        for index in ranks:
            dist.init_process_group("fake", rank=index, world_size=world, store=FakeStore())
            with Live() as live:
                made = divided_decoder(model, vocab_size, Topology(parallel, world, index), "cpu", torch.bfloat16)
            counting = Counting(model)
            if parallel.zero_stage == 3:
                declared = declarations(made)
                for key, parameter in made.named_parameters():
                    each = -(-parameter.numel() // world)
                    fill_range(parameter.detach().to("meta"), counting, key, declared[key].role, each * index, each)
            else:
                initialise(made.to("meta"), counting)
            elements = sum(parameter.numel() for parameter in made.parameters())
            answers[name, index] = (elements, live.peak, counting.written)
            dist.destroy_process_group()
    return answers
