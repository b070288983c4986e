"""One peer of the loader on the same tokens, on one core: run by `bench_loader_peers.py`, in a process of its own.

    PYTHONPATH=PEERS python tests/benchmarks/loader_peers.py mosaic|litdata TOKENS.bin FOLDER WIDTH SECONDS

TOKENS.bin is uint16. The peer's own writer makes its files below FOLDER; then it reads them, shuffled:

    bare      its data set as an iterator: rows that were not read; LitData's are views of its file
    batches   its own `StreamingDataLoader` in this process: batches [16, WIDTH + 1] in memory of their own
    compact   those batches and where documents begin in them, from their tokens: what Plinth's loader gives
    expanded  those batches as int32, and the number of each token's document: what Plinth's batches expand to
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


Rows = Callable[[], Iterator[np.ndarray]]
Form = Callable[[np.ndarray], object]


def compact(batch: np.ndarray) -> object:
    """Where a document follows the end of another, in the flat batch; rows begin one each."""
    return np.flatnonzero(batch.ravel() == 0) + 1


def expanded(batch: np.ndarray) -> object:
    """Ids, and the number of each token's document in its row, as int32."""
    numbers = np.zeros(batch.shape, np.int32)
    np.cumsum(batch[:, :-1] == 0, axis=1, dtype=np.int32, out=numbers[:, 1:])
    return batch.astype(np.int32), numbers


def rate(batches: Rows, rows: int, width: int, seconds: float, form: Form | None = None) -> float:
    """Return tokens per second of one core, with its threads; each item of `batches` has `rows` rows."""
    tokens, started = 0, time.process_time()
    while True:
        for batch in batches():
            if form is not None:
                form(batch)
            tokens += rows * width
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


def mosaic(tokens: np.ndarray, folder: Path, width: int) -> tuple[Rows, Rows]:
    """MosaicML streaming: MDS shards of fixed uint16 arrays, its default shuffle."""
    _without_vision()
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{width + 1}"}, size_limit=1 << 26) as out:
        for start in range(0, len(tokens) - width - 1, width):
            out.write({"tokens": tokens[start : start + width + 1]})
    data = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
    loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=0, drop_last=True)
    return lambda: (row["tokens"] for row in data), lambda: (batch["tokens"].numpy() for batch in loader)


def _document(bounds: tuple[str, int, int]) -> Iterator[object]:
    import torch

    path, start, stop = bounds
    yield torch.from_numpy(np.memmap(path, np.uint16, "r")[start:stop].astype(np.uint16))


def litdata(path: Path, tokens: np.ndarray, folder: Path, width: int) -> tuple[Rows, Rows]:
    """LitData: `optimize` and `TokensLoader`, shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

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
    loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=0, shuffle=True, drop_last=True)
    return lambda: (row.numpy() for row in data), lambda: (batch.numpy() for batch in loader)


def main() -> None:
    """Print tokens per second of each way as JSON; the better of two."""
    kind, path, folder, width, seconds = sys.argv[1:6]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tokens = np.fromfile(path, np.uint16)
    target = Path(folder) / kind / width
    made = {"mosaic": mosaic, "litdata": partial(litdata, Path(path))}
    rows, batches = made[kind](tokens, target, int(width))
    shape = next(batch.shape for batch in batches())
    assert shape == (BATCH, int(width) + 1), shape
    ways = {"bare": (rows, 1, None), "batches": (batches, BATCH, None)}
    ways |= {"compact": (batches, BATCH, compact), "expanded": (batches, BATCH, expanded)}
    found = {
        name: max(rate(each, count, int(width), float(seconds), form) for _ in range(2))
        for name, (each, count, form) in ways.items()
    }
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
