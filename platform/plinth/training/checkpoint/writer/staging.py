"""Copy the state of a rank into host memory that another process can read.

    engine, optimizer, parameters          one block of memory (memfd)
    ┌──────────┐   every storage once      ┌───────────┬──────┐
    │ tensors  │ ────────────────────────▶ │ bytes     │ plan │
    └──────────┘                           └───────────┴──────┘

Tensors that are views of one buffer, as DeepSpeed's flat partitions are, are copied once. From one update of the
optimizer to the next nothing of the state changes, so the copy may run beside forward and backward
(`BackgroundCopy`). On GPUs the block is page-locked, so that copies run at the speed of the bus. The block is
anonymous memory with a descriptor: it is gone when rank and writer are, and nothing stays in /dev/shm after a kill.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable
from threading import Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plinth.storage.tensor_file import DTYPES
from plinth.training.checkpoint.writer import rank_part

#: Alignment of storages in the block, in bytes.
ALIGN = 64

#: The block grows by this much at a time, in bytes: the plan in it is a few bytes longer or shorter in every save,
#: and mapping a block anew costs as much as filling it.
GROWTH = 1 << 20


class Span(NamedTuple):
    """Bytes of one storage that are needed, and the storage itself."""

    begin: int
    end: int
    owner: Tensor


class StagingLayout:
    """The place of every tensor in the block: views of the same storage keep their distance."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
        spans: dict[tuple[str, int], Span] = {}
        for tensor in self.tensors:
            key, begin, end = _place(tensor)
            known = spans.get(key)
            spans[key] = (
                Span(begin, end, tensor)
                if known is None
                else known._replace(begin=min(begin, known.begin), end=max(end, known.end))
            )
        self.spans, self._starts, at = spans, dict[tuple[str, int], int](), 0
        for key, span in spans.items():
            self._starts[key] = at
            at += -(-(span.end - span.begin) // ALIGN) * ALIGN
        self.bytes = at

    def describe(self, index: int, name: str) -> rank_part.Tensor:
        """The tensor at a place of the list, under a name."""
        tensor = self.tensors[index]
        key, begin, end = _place(tensor)
        return rank_part.Tensor(
            name=name,
            dtype=DTYPES[str(tensor.dtype).removeprefix("torch.")],
            torch_dtype=str(tensor.dtype),
            shape=tuple(tensor.shape),
            at=self._starts[key] + begin - self.spans[key].begin,
            bytes=end - begin,
        )

    def copy(self, block: Tensor) -> None:
        """Copy every span to its place in a block of bytes on the CPU, and wait until they are there."""
        for key, span in self.spans.items():
            size = span.end - span.begin
            source = torch.empty(0, dtype=torch.uint8, device=span.owner.device)
            source.set_(span.owner.untyped_storage(), span.begin, (size,), (1,))
            block[self._starts[key] : self._starts[key] + size].copy_(source, non_blocking=True)
        if any(span.owner.is_cuda for span in self.spans.values()):
            torch.cuda.synchronize()


class BackgroundCopy(Thread):
    """A copy beside training. Nothing of the state may change before `wait` has returned.

    Args:
        layout: of the state.
        block: to copy to.
        then: called on this thread when all is copied, with the seconds that a caller has waited for it.
    """

    def __init__(self, layout: StagingLayout, block: Tensor, then: Callable[[float], None]) -> None:
        super().__init__(name="plinth-checkpoint-copy")
        self._layout: StagingLayout | None = layout
        self._block, self._then = block, then
        self._waited_from: float | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Copy, with no need of the interpreter's lock but between storages."""
        try:
            assert self._layout is not None
            self._layout.copy(self._block)
            self._layout = None  # it references tensors
            since = self._waited_from
            self._then(0.0 if since is None else time.monotonic() - since)
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Return when the copy is made; raises its exception."""
        if self._waited_from is None:
            self._waited_from = time.monotonic()
        self.join()
        if self._error is not None:
            raise self._error

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """`wait`, as a hook of `torch.optim.Optimizer.register_step_pre_hook`."""
        self.wait()


class Arena:
    """A block of shared memory that grows with the state; one descriptor for its whole life."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("plinth-checkpoint", os.MFD_CLOEXEC)
        self.size = 0
        self._map: mmap.mmap | None = None
        self._pinned = 0

    def reserve(self, size: int) -> Tensor:
        """At least so many bytes, as a tensor [size] of uint8; what was in it may be lost."""
        if size > self.size:
            self._unpin()
            size = -(-size // GROWTH) * GROWTH + GROWTH
            os.ftruncate(self.fd, size)
            self._map, self.size = mmap.mmap(self.fd, size), size  # pages come when they are first written
            self.block = torch.frombuffer(self._map, dtype=torch.uint8)
            self._pin()
        return self.block

    def write(self, at: int, data: bytes) -> None:
        """Write bytes into the block."""
        assert self._map is not None
        self._map[at : at + len(data)] = data

    def close(self) -> None:
        """Give the memory back, once the writer has it no more."""
        self._unpin()
        os.close(self.fd)

    def _pin(self) -> None:
        if torch.cuda.is_available():
            status = _runtime().cudaHostRegister(self.block.data_ptr(), self.size, 0)
            self._pinned = self.block.data_ptr() if int(status) == 0 else 0  # unpinned memory is slower, not wrong

    def _unpin(self) -> None:
        if self._pinned:
            _runtime().cudaHostUnregister(self._pinned)
            self._pinned = 0


def _place(tensor: Tensor) -> tuple[tuple[str, int], int, int]:
    """The storage of a contiguous tensor, and the range of bytes within it."""
    storage = tensor.untyped_storage()
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return (str(tensor.device), storage.data_ptr()), begin, begin + int(tensor.numel()) * tensor.element_size()


def _runtime() -> Any:
    """The CUDA runtime, which has no types."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
