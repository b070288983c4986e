"""Copy of a rank's state in shared memory, and digests that are computed while it is filled."""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from threading import Thread
from typing import Any, NamedTuple

import torch
from blake3 import blake3
from torch import Tensor

from plinth.storage.tensor_file import DTYPES
from plinth.training.checkpoint import rank_part
from plinth.training.checkpoint.digest_tree import CHUNK_BYTES, Beat, silent
from plinth.training.checkpoint.rank_part import digest_of_lines, tensor_line

# Copy of a rank's state into host memory that another process can read.
#
#     engine, optimizer, parameters          one block of memory (memfd)
#     ┌──────────┐   every storage once      ┌───────────┬──────┐
#     │ tensors  │ ────────────────────────▶ │ bytes     │ plan │
#     └──────────┘                           └───────────┴──────┘
#
# For tensors that are views of one buffer, such as DeepSpeed's flat partitions, every used byte is copied once, and
# gaps are not copied. The state does not change between two updates of the optimizer, so the copy may run parallel to
# forward and backward (`BackgroundCopy`). On GPUs the block is page-locked for copies at bus speed. The block is
# anonymous memory with a descriptor: it is freed when rank and writer end, and a kill leaves nothing in /dev/shm.

#: Alignment of storages in the block, in bytes.
ALIGN = 64

#: Step in bytes by which the block grows. The plan in it varies by a few bytes from save to save, and remapping the
#: block costs as much as filling it.
GROWTH = 1 << 20


class Span(NamedTuple):
    """Range of bytes to copy from one storage, and a tensor that keeps the storage alive."""

    begin: int
    end: int
    owner: Tensor


class StagingLayout:
    """Position of every tensor in the memory block. The block has no gaps, and no byte of a storage is copied twice."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
        places: dict[tuple[str, int], list[Span]] = {}
        for tensor in self.tensors:
            key, begin, end = _place(tensor)
            places.setdefault(key, []).append(Span(begin, end, tensor))
        self.spans, self.bytes = list[Span](), 0
        self._starts: dict[tuple[str, int], tuple[list[int], list[int]]] = {}  # by storage: in it, in the block
        for key, needed in places.items():
            spans = _merged(needed)
            starts = []
            for span in spans:
                starts.append(self.bytes)
                self.bytes += -(-(span.end - span.begin) // ALIGN) * ALIGN
            self._starts[key] = [span.begin for span in spans], starts
            self.spans += spans

    def describe(self, index: int, name: str) -> rank_part.Tensor:
        """Return the shape, dtype and block position of the tensor at an index of the list, under a given name."""
        tensor = self.tensors[index]
        key, begin, end = _place(tensor)
        begins, starts = self._starts[key]
        span = bisect_right(begins, begin) - 1
        return rank_part.Tensor(
            name=name,
            dtype=DTYPES[str(tensor.dtype).removeprefix("torch.")],
            torch_dtype=str(tensor.dtype),
            shape=tuple(tensor.shape),
            at=starts[span] + begin - begins[span],
            bytes=end - begin,
        )

    def copy(self, block: Tensor) -> None:
        """Copy every span to its position in a block of bytes on the CPU, and wait until all spans are copied."""
        at = 0
        for span in self.spans:
            size = span.end - span.begin
            source = torch.empty(0, dtype=torch.uint8, device=span.owner.device)
            source.set_(span.owner.untyped_storage(), span.begin, (size,), (1,))
            block[at : at + size].copy_(source, non_blocking=True)
            at += -(-size // ALIGN) * ALIGN
        if any(span.owner.is_cuda for span in self.spans):
            torch.cuda.synchronize()


class BackgroundCopy(Thread):
    """Copy of the state in a background thread. The state must not change before `wait` has returned.

    Args:
        layout: layout of the state.
        block: destination.
        then: called after the copy, on the waiting thread, with the seconds that it waited.
    """

    def __init__(self, layout: StagingLayout, block: Tensor, then: Callable[[float], None]) -> None:
        super().__init__(name="plinth-checkpoint-copy")
        self._layout: StagingLayout | None = layout
        self._block, self._then = block, then
        self._waited_from: float | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Copy the state. The thread needs the GIL only between two storages."""
        try:
            assert self._layout is not None
            self._layout.copy(self._block)
            self._layout = None  # the layout references tensors
            since = self._waited_from
            self._then(0.0 if since is None else time.monotonic() - since)
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Wait for the end of the copy. If the copy failed, raise its exception."""
        if self._waited_from is None:
            self._waited_from = time.monotonic()
        self.join()
        if self._error is not None:
            raise self._error


class Arena:
    """Block of shared memory that grows with the state and keeps the same file descriptor."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("plinth-checkpoint", os.MFD_CLOEXEC)
        self.size = 0
        self._map: mmap.mmap | None = None
        self._pinned = 0

    def reserve(self, size: int) -> Tensor:
        """Return a uint8 tensor [size] over the memory block, growing the block if needed. The block's old content may
        be lost."""
        if size > self.size:
            self._unpin()
            size = -(-size // GROWTH) * GROWTH + GROWTH
            os.ftruncate(self.fd, size)
            self._map, self.size = mmap.mmap(self.fd, size), size  # pages are allocated on first write
            self.block = torch.frombuffer(self._map, dtype=torch.uint8)
            self._pin()
        return self.block

    def write(self, at: int, data: bytes) -> None:
        """Write bytes into the memory block at an offset."""
        assert self._map is not None
        self._map[at : at + len(data)] = data

    def close(self) -> None:
        """Free the memory block once the writer has released it."""
        self._unpin()
        os.close(self.fd)

    def _pin(self) -> None:
        if torch.cuda.is_available():
            status = _runtime().cudaHostRegister(self.block.data_ptr(), self.size, 0)
            self._pinned = self.block.data_ptr() if int(status) == 0 else 0  # unpinned memory is slower but correct

    def _unpin(self) -> None:
        if self._pinned:
            _runtime().cudaHostUnregister(self._pinned)
            self._pinned = 0


def _merged(needed: list[Span]) -> list[Span]:
    """Merge overlapping spans of one storage. Return disjoint spans in ascending order."""
    spans: list[Span] = []
    for one in sorted(needed, key=lambda span: (span.begin, span.end)):
        if spans and one.begin <= spans[-1].end:
            spans[-1] = spans[-1]._replace(end=max(spans[-1].end, one.end))
        else:
            spans.append(one)
    return spans


def _place(tensor: Tensor) -> tuple[tuple[str, int], int, int]:
    """Return the storage of a contiguous tensor, and the range of bytes within it."""
    storage = tensor.untyped_storage()
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return (str(tensor.device), storage.data_ptr()), begin, begin + int(tensor.numel()) * tensor.element_size()


def _runtime() -> Any:
    """Return PyTorch's module of the CUDA runtime, which has no type annotations."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


# Digests of tensors' memory, also while it is filled.
#
# A restore reads a piece of a file into the engine's memory and hashes that memory at once, while it is in the cache:
# one pass verifies file and copy.
#
# Does not belong here: the choice of tensors (snapshot), reading files (sharded_state).


def tensors_digest(tensors: Iterable[Tensor], beat: Beat = silent) -> str:
    """Return one SHA-256 over tensors in order. It equals the writer's digest of the staged copy of these tensors."""
    return digest_of_lines(line_of(str(index), tensor, beat) for index, tensor in enumerate(tensors))


def line_of(name: str, tensor: Tensor, beat: Beat = silent) -> str:
    """Return one tensor's line for a digest over many tensors: name, dtype, shape, and the digest of its bytes."""
    return _Hashed(tensor).line(name, beat)


class FilledTensors:
    """Tensors that are hashed while they are filled, front to back, in pieces of any size.

    The result equals `tensors_digest` after the last piece. A tensor is hashed at the end if it is on a device, or if
    it was written again after it was hashed.
    """

    def __init__(self) -> None:
        self._tensors: list[_Hashed] = []
        self._by_address: list[_Hashed] = []
        self._addresses: list[int] = []

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Start to track tensors that are not filled yet."""
        self._tensors = [_Hashed(tensor) for tensor in tensors]
        on_host = (one for one in self._tensors if one.tensor.is_cpu and one.tensor.is_contiguous())
        self._by_address = sorted(on_host, key=lambda one: one.address)
        self._addresses = [one.address for one in self._by_address]

    def filled(self, address: int, size: int) -> None:
        """Record that `size` bytes of a tensor were filled. Hash them, and any earlier bytes that were not hashed yet.

        Memory on a device, and memory outside the tracked tensors, is ignored.
        """
        index = bisect_right(self._addresses, address) - 1
        if index >= 0 and address + size <= self._addresses[index] + self._by_address[index].bytes:
            begin = address - self._addresses[index]
            self._by_address[index].reach(begin, begin + size)

    def digest(self, beat: Beat = silent) -> str:
        """Return SHA-256 over the tensors in order."""
        return digest_of_lines(one.line(str(index), beat) for index, one in enumerate(self._tensors))


class _Hashed:
    """A tensor with a hashed prefix."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.address, self.bytes = tensor, tensor.data_ptr(), tensor.numel() * tensor.element_size()
        self._digest, self._done, self._again = blake3(), 0, False
        self._data: Any = None  # bytes of the tensor, from first use

    def reach(self, begin: int, end: int) -> None:
        """Record that bytes `begin` to `end` are filled, and hash all bytes up to `end`. Tensors that are filled twice
        are hashed at the end."""
        self._again |= begin < self._done
        if not self._again:
            self._hash(end, silent)

    def line(self, name: str, beat: Beat) -> str:
        """Return the tensor's digest line. Call it after the last change of the tensor."""
        if self._again:
            self._digest, self._done = blake3(), 0
        self._hash(self.bytes, beat)
        self._data = None  # a copy for a tensor on a device
        return tensor_line(name, str(self.tensor.dtype), self.tensor.shape, self._digest.hexdigest())

    def _hash(self, end: int, beat: Beat) -> None:
        self._data = bytes_of(self.tensor) if self._data is None else self._data
        for at in range(self._done, end, CHUNK_BYTES):
            self._digest.update(self._data[at : min(at + CHUNK_BYTES, end)])
            beat()
        self._done = max(self._done, end)


def bytes_of(tensor: Tensor) -> Any:
    """Return the bytes of a tensor. The bytes of a host tensor are not copied."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
