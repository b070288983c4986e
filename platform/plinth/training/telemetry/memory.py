"""Memory of a rank: of its process on the host, and of the device as PyTorch's allocator counts it."""

from __future__ import annotations

import resource
from typing import Any

#: Fields of an event, and the counters of `torch.cuda.memory_stats` that they are.
COUNTERS = {
    "allocated": "allocated_bytes.all.current",
    "reserved": "reserved_bytes.all.current",
    "peak": "allocated_bytes.all.peak",
    "retries": "num_alloc_retries",
}


def memory_of(device: Any) -> dict[str, Any]:
    """Fields of a step's event: `host_memory_bytes`, the most that the process has held, and on GPUs `device_memory` in
    bytes: held by tensors, held by the allocator, the most held by tensors since the process began, and how often the
    allocator had to give memory back and try again. Counters of the host: nothing waits for the device."""
    fields: dict[str, Any] = {"host_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type == "cuda":
        import torch

        counted = torch.cuda.memory_stats(device)
        fields["device_memory"] = {name: int(counted.get(key, 0)) for name, key in COUNTERS.items()}
    return fields
