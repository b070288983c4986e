"""How many threads PyTorch works with, for a while. Torch is imported where it is used, so anything can import this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_threads(count: int = 1) -> Iterator[None]:
    """So many threads of PyTorch work on an operation within.

    One thread adds up in one order, whatever the machine; and on work that is too small to divide, on a busy machine,
    the waiting of threads for one another took fifty times the work.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
