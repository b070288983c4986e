"""The arithmetic of a round: the mean of the sites' weights, and an outer step of Nesterov towards it.

    x   common weights that the sites began from      v   momentum, 0 at first
    m   mean of the sites' weights                    d   their mean change, m - x

    v' = mu v + d          rounded to FP32
    x' = m + (lr - 1) d + lr mu v'

This is `torch.optim.SGD(lr, momentum=mu, nesterov=True)` with the gradient -d, which has x + lr (d + mu v'); written
from the mean, no rounding of m - x comes back: with lr 1 and mu 0 the common weights *are* the mean, and of one site
its own weights, bit for bit. For the same reason sites send weights, not differences rounded to FP32. Sums are FP64, in
the order of the sites' names, rounded once. One parameter is in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.records import Blob
from plinth.storage import tensor_file
from plinth.storage.store import Store
from plinth.training.checkpoint.sharded_state import FORMAT, MASTER, WHOLE, ShardedState, Share, key_of

#: The kind of the outer momentum in its file.
MOMENTUM = "momentum"


def mean_of(sites: Sequence[Tensor]) -> Tensor:
    """The mean in FP64."""
    total = sites[0].double()  # and not 0 + it: a minus zero stays one
    for weights in sites[1:]:
        total = total + weights.double()
    return total / len(sites)


def next_momentum(common: Tensor, momentum: Tensor | None, mean: Tensor, mu: float) -> Tensor:
    """v' in FP32."""
    change = mean - common.double()
    return (change if momentum is None else mu * momentum.double() + change).float()


def next_common(common: Tensor, momentum: Tensor | None, mean: Tensor, lr: float, mu: float) -> Tensor:
    """x' in FP32; `momentum` is v', which only mu above 0 needs."""
    if lr != 1:
        mean = mean + (lr - 1) * (mean - common.double())
    if mu and momentum is not None:
        mean = mean + lr * mu * momentum.double()
    return mean.float()


class RoundFiles:
    """The files of a round, opened; closed with `stack`."""

    def __init__(self, stack: ExitStack, store: Store) -> None:
        self._stack, self._store = stack, store

    def opened(self, *files: Blob) -> ShardedState:
        """The pieces in some files.

        Raises:
            CheckpointError, IntegrityError, MissingError: one is absent, changed, or not of this form.
        """
        return ShardedState(self._stack, self._store.root, files=[self._store.open_path(file) for file in files])

    def write(self, like: ShardedState, kind: str, value: Callable[[str], Tensor]) -> Blob:
        """A file with one whole tensor for each parameter of `like`, in the order of their names."""
        names = sorted(like.names)
        shapes = {name: list(like.shape_of(name)) for name in names}
        keys = {name: key_of(Share(name, tuple(shapes[name]), WHOLE, 0, {}), kind, 0) for name in names}
        sizes = {keys[name]: ("F32", [numel], 4 * numel) for name, numel in _numels(shapes)}
        metadata = {"plinth": json.dumps({"format": FORMAT, "shapes": shapes}, sort_keys=True)}

        def pieces() -> Iterator[memoryview]:
            yield memoryview(tensor_file.header(sizes, metadata))
            for name in names:
                yield value(name).contiguous().view(-1).numpy().data

        with self._store.staging(".safetensors") as path:
            tensor_file.write_chunks(path, pieces())
            return self._store.put_file(Path(path))


def require_fit(state: ShardedState, common: ShardedState | None) -> None:
    """Refuse weights that are not finite, or not of the parameters of the common ones.

    Raises:
        CheckpointError: with the first parameter that differs.
    """
    if common is not None and (differing := sorted(state.names ^ common.names)):
        raise CheckpointError("other parameters than the common weights", found=", ".join(differing[:3]))
    for name in sorted(state.names):
        if common is not None and state.shape_of(name) != common.shape_of(name):
            raise CheckpointError(f"{name} has shape {state.shape_of(name)}", expected=common.shape_of(name))
        if not state.whole(name, MASTER).isfinite().all():
            raise CheckpointError(f"{name} is not finite")


def same_weights(state: ShardedState, other: ShardedState) -> bool:
    """Whether both hold the same bits."""
    bits = ((one.whole(name, MASTER).view(torch.int32) for one in (state, other)) for name in sorted(state.names))
    return state.names == other.names and all(torch.equal(*pair) for pair in bits)


def _numels(shapes: dict[str, list[int]]) -> list[tuple[str, int]]:
    return [(name, torch.Size(shape).numel()) for name, shape in shapes.items()]
