"""Measurement of the devices of this machine by many large matrix products and many copies. Imports torch.

    python -m plinth.training.telemetry.machine_probe   one line of JSON: a list of fields of `DeviceSpeed`

The fastest repetition counts, because other processes use the machine too, and a roofline needs the peak. Matrices are
square. Each product takes less than a second, even in a precision that the processor emulates. A copy reads and writes
buffers larger than any cache, and bytes read and bytes written both count, as in STREAM.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from plinth.training.attempts import hardware

#: Seconds per quantity; at least `LEAST` repetitions.
SECONDS, LEAST = 0.4, 3
#: Maximum seconds of one product.
LONGEST_S = 1.0
#: Maximum side of a product, and bytes of a buffer, by kind of device.
SIDE = {"cpu": 1536, "cuda": 8192}
BUFFER = {"cpu": 1 << 28, "cuda": 1 << 30}


def best_s(action: Callable[[], Any], clock: Callable[[Callable[[], Any]], float]) -> float:
    """Return the duration of the fastest of many repetitions in seconds. The first repetition is left out, because it
    loads kernels."""
    clock(action)
    begun, found = time.perf_counter(), list[float]()
    while len(found) < LEAST or time.perf_counter() - begun < SECONDS:
        found.append(clock(action))
    return min(found)


def largest_side(most: int, seconds: Callable[[int], float]) -> int:
    """Return the largest matrix side, up to `most`, whose product takes less than LONGEST_S. Twice the side takes eight
    times as long."""
    side = most // 8
    seconds(side)  # loads kernels
    while side < most and 8 * seconds(side) < LONGEST_S:
        side *= 2
    return side


def on_host(action: Callable[[], Any]) -> float:
    """Return the seconds that an action takes, by the host's clock."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def on_device(action: Callable[[], Any]) -> float:
    """Return the seconds that an action takes, between two events on the current stream of the current device."""
    make: Callable[..., Any] = torch.cuda.Event
    first, last = make(enable_timing=True), make(enable_timing=True)
    first.record()
    action()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000.0


def speed(device: torch.device, name: str) -> dict[str, Any]:
    """Measure a device and return the fields of its `DeviceSpeed`."""
    clock = on_device if device.type == "cuda" else on_host
    flops = {}
    for precision, dtype in _precisions(device).items():
        if device.type == "cuda":  # as the engine sets it (training.fp32_matmul)
            torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        product = partial(_product, device, dtype)
        side = largest_side(SIDE[device.type], lambda side, product=product: clock(product(side)))  # type: ignore[misc]
        flops[precision] = 2 * side**3 / best_s(product(side), clock)
    source = torch.zeros(_buffer(device), dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    seconds = best_s(lambda: target.copy_(source), clock)
    fields = {"kind": device.type, "index": device.index or 0, "name": name}
    return {**fields, "flops": flops, "bytes_per_s": 2 * source.numel() / seconds}


def _product(device: torch.device, dtype: torch.dtype, side: int) -> Callable[[], Any]:
    """Return a function that multiplies two random matrices. Constant matrices would flip fewer bits, draw less power
    and allow higher clocks."""
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return partial(torch.mm, left, right, out=torch.empty_like(left))


def _precisions(device: torch.device) -> dict[str, torch.dtype]:
    found = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if device.type == "cpu":
        return found
    if torch.cuda.get_device_capability(device) >= (8, 0):
        return {**found, "tf32": torch.float32, "fp16": torch.float16}
    return {"fp32": torch.float32, "fp16": torch.float16}  # BF16 would be emulated


def _buffer(device: torch.device) -> int:
    """Return the size of a copy buffer in bytes. It is smaller if memory is short, because a run may use the device."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else BUFFER["cpu"] * 4
    return int(min(BUFFER[device.type], free // 4))


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)  # the threads of all ranks together
    found = [speed(torch.device("cpu"), hardware()[1])]
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index), torch.inference_mode():
            found.append(speed(torch.device("cuda", index), torch.cuda.get_device_name(index)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
