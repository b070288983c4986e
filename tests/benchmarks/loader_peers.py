"""One peer of the loader on the same tokens, on one core: run by `bench_loader_peers.py`, in a process of its own.

    PYTHONPATH=PEERS python tests/benchmarks/loader_peers.py mosaic|litdata TOKENS.bin FOLDER WIDTH SECONDS

TOKENS.bin is uint16. The peer's own writer makes its files below FOLDER; then it reads them, shuffled, and every 16
sequences become what Plinth's loader gives: tokens int32 [16, WIDTH + 1] and the number of each token's document.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np

BATCH = 16


def rate(rows: Callable[[], Iterator[np.ndarray]], width: int, seconds: float, masks: bool) -> float:
    """Tokens per second of the core, its threads counted, in batches of rows."""
    tokens, started, held = 0, time.process_time(), []
    while True:
        for row in rows():
            held.append(row)
            if len(held) < BATCH:
                continue
            batch = np.stack(held).astype(np.int32)
            if masks:
                numbers = np.zeros(batch.shape, np.int32)
                np.cumsum(batch[:, :-1] == 0, axis=1, dtype=np.int32, out=numbers[:, 1:])
            held, tokens = [], tokens + BATCH * width
            if time.process_time() - started > seconds:
                return tokens / (time.process_time() - started)


def _without_vision() -> None:
    """Let `streaming` import what its vision part wants, which is not used here and does not fit a CPU's torch."""
    import transformers.feature_extraction_utils
    import transformers.tokenization_utils_base  # noqa: F401  # both ask for torchvision's version when imported

    for name in ("", ".datasets", ".transforms", ".transforms.functional"):
        module = types.ModuleType(f"torchvision{name}")
        module.__spec__ = ModuleSpec(f"torchvision{name}", None)
        module.__dict__.update(VisionDataset=object, to_tensor=None)
        sys.modules[f"torchvision{name}"] = module


def mosaic(tokens: np.ndarray, folder: Path, width: int) -> Callable[[], Iterator[np.ndarray]]:
    """MosaicML streaming: MDS shards of fixed uint16 arrays, its default shuffle."""
    _without_vision()
    from streaming import MDSWriter, StreamingDataset

    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{width + 1}"}, size_limit=1 << 26) as out:
        for start in range(0, len(tokens) - width - 1, width):
            out.write({"tokens": tokens[start : start + width + 1]})
    data = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
    return lambda: (row["tokens"] for row in data)


def _document(bounds: tuple[str, int, int]) -> Iterator[object]:
    import torch

    path, start, stop = bounds
    yield torch.from_numpy(np.memmap(path, np.uint16, "r")[start:stop].astype(np.uint16))


def litdata(path: Path, tokens: np.ndarray, folder: Path, width: int) -> Callable[[], Iterator[np.ndarray]]:
    """LitData: `optimize` and `TokensLoader`, shuffled."""
    from litdata import StreamingDataset, TokensLoader, optimize

    whole = (len(tokens) // (width + 1)) * (width + 1)
    step = (width + 1) * max(1, (1 << 20) // (width + 1))
    bounds = [(str(path), start, min(start + step, whole)) for start in range(0, whole, step)]
    optimize(
        fn=_document,
        inputs=bounds,
        output_dir=str(folder),
        chunk_size=(width + 1) * max(1, (1 << 25) // (width + 1)),
        item_loader=TokensLoader(block_size=width + 1),
        num_workers=1,
    )
    data = StreamingDataset(str(folder), item_loader=TokensLoader(block_size=width + 1), shuffle=True)
    return lambda: (row.numpy() for row in data)


def main() -> None:
    """Print tokens per second with and without masks as JSON."""
    kind, path, folder, width, seconds = sys.argv[1:6]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tokens = np.fromfile(path, np.uint16)
    target = Path(folder) / kind / width
    made = {"mosaic": mosaic, "litdata": partial(litdata, Path(path))}
    rows = made[kind](tokens, target, int(width))
    found = {
        str(masks): max(rate(rows, int(width), float(seconds), masks) for _ in range(2)) for masks in (True, False)
    }
    print("RESULT", json.dumps({"masks": found["True"], "plain": found["False"]}))


if __name__ == "__main__":
    main()
