"""Ranks whose steps may not read tensors of the device on the host.

On a CPU every tensor can be read at once, so a mode tracks values derived from parameters,
the batch and the optimizer's state through all operations, in place and collectives too, and raises where one of these
is read or gives a shape: on a GPU the host would wait there for all that was launched before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import synthetic
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plinth.training.config import RunConfig

#: Operations that give the host a number, or a shape that depends on numbers.
READS = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero",
    "aten::_unique2", "aten::unique_consecutive", "aten::repeat_interleave.Tensor", "aten::bincount",
}  # fmt: skip

#: Operations that do so where an index is a mask.
MASKED = {"aten::index.Tensor", "aten::index_put_", "aten::index_put"}


class HostRead(AssertionError):
    """The host read a tensor of the device."""


class Watched(TorchDispatchMode):
    """Raise `HostRead` within, where a value derived from the device's tensors is read."""

    def __init__(self, on_device: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._held: dict[int, StorageWeakRef] = {}
        for tensor in on_device:
            self._mark(tensor)

    def _mark(self, tensor: torch.Tensor) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        self._held[reference.cdata] = reference

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor is derived from the device's."""
        found = self._held.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.expired()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        device = any(self.holds(tensor) for tensor in given)
        name = func.name()
        masked = name in MASKED and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:])
        if device and (name in READS or masked):
            raise HostRead(name)
        made = func(*args, **(kwargs or {}))
        if device:
            changed = given if func._schema.is_mutable else []
            for leaf in [*tree_leaves(made), *changed]:
                if isinstance(leaf, torch.Tensor):
                    self._mark(leaf)
        return made


@contextmanager
def reads_forbidden(on_device: Iterable[torch.Tensor]) -> Any:
    """Also what no operation shows: `tolist` and `numpy`."""
    mode, kept = Watched(on_device), {name: getattr(torch.Tensor, name) for name in ("tolist", "numpy")}

    def watched(name: str) -> Callable[..., Any]:
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if mode.holds(tensor):
                raise HostRead(name)
            return kept[name](tensor, *args, **kwargs)

        return read

    for name in kept:
        setattr(torch.Tensor, name, watched(name))
    try:
        with mode:
            yield
    finally:
        for name, method in kept.items():
            setattr(torch.Tensor, name, method)


def train_all(configs: dict[str, RunConfig], reads: bool) -> dict[str, list[float]]:
    """On one rank, of each configuration: losses and norms of four steps, the last two of them watched. With `reads`
    the step's loss is read at its gradient, so that the watch must raise."""
    from plinth.training.engine import engine as engines

    rank = engines.join(next(iter(configs.values())))
    answers = {name: _train(config, rank, reads) for name, config in configs.items()}
    engines.leave()
    return answers


def _train(config: RunConfig, rank: Any, reads: bool) -> list[float]:
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.engine.skipped_update import UpdateSkipper
    from plinth.training.guard.rules import Limits

    engine = open_engine(config, rank)
    skipper = UpdateSkipper(engine)
    share = skipper._share
    if reads:
        engine.on_gradient = lambda loss: (float(loss), share(loss))[1]  # type: ignore[assignment]
    found = []
    for step in range(1, 5):
        batch = synthetic.batch_at(config, step, engine.topology.place.data)

        def one(batch: Any = batch, step: int = step) -> Any:
            skipper.arm(Limits(loss=100.0, grad_norm=100.0), (1, 2), 0, 0.5)
            engine.stats.begin(step)
            return skipper.result(*engine.train_step(batch, 1e-3))

        if step < 3:
            pending = one()
        else:
            on_device = [*engine.module.parameters(), *engine.optimizer_tensors()]
            partitions = [p.ds_tensor for p in engine.module.parameters() if hasattr(p, "ds_tensor")]
            with reads_forbidden([*on_device, *partitions]):
                pending = one()
        numbers = pending.read()
        found += [numbers.loss, numbers.grad_norm]
    engine.deepspeed.destroy()
    return found
