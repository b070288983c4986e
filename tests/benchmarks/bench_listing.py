"""Time to list the documents of a step at 10^12 tokens: order, index and records, to the last byte.

    python tests/benchmarks/bench_listing.py [--tokens N]

10^9 documents (log-normal, 1,000 tokens in the mean) in shards and index parts of the sizes that
`plinth.tokens.shards.shards` makes.
The index would be 40 GB, and only what a search reads of it is kept: each part is written whole once, searched,
and what was read stays, at its place in a file of the full length; what is listed is compared with what was drawn. So
reads are answered by the page cache; where a disk answers its latency is added. Each measurement is one call in a fresh
process, after imports: the mixture's manifest is loaded from its file, a step is listed for the first time.
CPU seconds are reported together with wall-clock seconds, since other work runs on this machine.
Writes tests/benchmarks/results/listing.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from plinth import private
from plinth.compute.context import Context
from plinth.records import Blob, Manifest, Part
from plinth.storage import store
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.batch import documents_of_step
from plinth.tokens.order.order import Order
from plinth.tokens.shards.index import DTYPES, open_lookup, write_index
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.shards import INDEX_DOCUMENTS

RESULTS = Path(__file__).parent / "results" / "listing.json"
MEAN_DOCUMENT, WIDTH = 1000, 4096
SIZES = (64, 256, 1024)
STEPS = 5


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=10**12)
    options.add_argument("--one", nargs=4, metavar=("FOLDER", "MIXTURE", "STEP", "BATCH"), help="a single measurement")
    given = options.parse_args()
    if given.one:
        print(json.dumps(_listed(given.one[0], given.one[1], int(given.one[2]), int(given.one[3]))))
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        os.environ[private.VARIABLE] = f"{folder}/private"
        ctx = Context(Workspace(folder).ensure())
        drawn = _Drawn(ctx, given.tokens)
        asked = _asked(drawn)
        rows = [drawn.first_read()]
        drawn.fill([(step, batch) for batch, steps in asked.items() for step in steps])
        mix, shards = drawn.publish()
        rows += [row for batch, steps in asked.items() for row in _measured(folder, mix, batch, steps, drawn)]
        started = time.perf_counter()
        parts = len(ctx.refs.load(shards).parts)
        rows.append(_row(f"loading the shards' manifest of {parts:,} parts, which listing does without", started))
    for row in rows:
        print(f"{row['measure']:<78} {row['value']:>12,.4g} {row['unit']}")
    RESULTS.write_text(json.dumps({"load": os.getloadavg()[0], "cpus": os.cpu_count(), "rows": rows}, indent=2) + "\n")


def _asked(drawn: _Drawn) -> dict[int, list[int]]:
    random = np.random.default_rng(7)
    return {batch: random.integers(0, drawn.order.steps(batch).total, STEPS).tolist() for batch in SIZES}


def _measured(folder: str, mix: str, batch: int, steps: Sequence[int], drawn: _Drawn) -> Iterator[dict[str, Any]]:
    found = []
    for step in steps:
        command = [sys.executable, __file__, "--one", folder, mix, str(step), str(batch)]
        found.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        assert found[-1]["documents"] == drawn.documents[step, batch], "what was listed is not what was drawn"
    for name, told in (("first", "first call of a process"), ("again", "its next call")):
        for at, clock in enumerate(("core", "clock")):
            seconds = sorted(one[name][at] for one in found)
            for kind, value in (("best", seconds[0]), ("median", seconds[len(seconds) // 2])):
                measure = f"{batch} sequences of {WIDTH}, {told}, {clock}: {kind} of {STEPS}"
                yield {"measure": measure, "value": value, "unit": "s"}
    yield {"measure": f"{batch} sequences: documents", "value": len(found[0]["documents"]), "unit": "documents"}


def _listed(folder: str, mix: str, step: int, batch: int) -> dict[str, Any]:
    """One call as `plinth run batch` makes it, timed from the manifest's file on; then once more with all open."""
    import plinth.tokens.packing_layout  # noqa: F401

    ctx = Context(Workspace(folder))
    at = _now()
    made = ctx.refs.load(mix)
    sequences = documents_of_step(ctx, made, None, step, batch)
    first = [now - then for now, then in zip(_now(), at, strict=True)]
    at = _now()
    documents_of_step(ctx, made, None, step, batch)
    again = [now - then for now, then in zip(_now(), at, strict=True)]
    documents = [[p.document.start, p.document.tokens, p.document.row] for one in sequences for p in one.documents]
    return {"first": first, "again": again, "documents": documents}


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


class _Drawn:
    """Shards of random documents, generated only where they are read."""

    def __init__(self, ctx: Context, tokens: int) -> None:
        self.ctx, random = ctx, np.random.default_rng(1)
        lengths = random.lognormal(np.log(MEAN_DOCUMENT) - 0.5, 1.0, INDEX_DOCUMENTS).astype(np.int64) + 2
        self.lengths, self.span = lengths, int(lengths.sum())
        self.count = -(-tokens // self.span)
        self.tokens = self.count * self.span
        self.index: list[Part] = []
        self.documents: dict[tuple[int, int], list[list[int]]] = {}
        self.params = Mixture(
            sequence_tokens=WIDTH,
            total_tokens=self.tokens - 2 * WIDTH,
            phases=(Phase(name="main", fraction=1.0, weights={"web": 1.0}),),
        )
        self.plan = mixture.plan(self.params, {"web": (self.tokens - 1) // WIDTH})
        self.order = Order(_manifest("mixture", (), self.plan))
        whole = [np.zeros(INDEX_DOCUMENTS, dtype) for dtype in DTYPES]
        ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), INDEX_DOCUMENTS, [None, pa.py_buffer(whole[0])])
        whole[4][:] = np.arange(INDEX_DOCUMENTS)
        self.form = write_index(ctx.store, "index.arrow", [ids, *map(pa.array, whole[1:])], {})
        self.path = ctx.store.path(self.form.blob)
        self.path.chmod(0o644)

    def first_read(self) -> dict[str, Any]:
        """Measure the cost that the first reader of a part on a machine adds."""
        started = time.perf_counter()
        store.require_unchanged(self.path, self.form.blob)
        return _row(f"first read of a part of {self.form.blob.bytes / 1e6:.0f} MB on a machine: SHA-256", started)

    def fill(self, steps: Sequence[tuple[int, int]]) -> None:
        """Make what listing these steps reads of the index."""
        asked = [self.order.step_window(step, batch).indices * WIDTH for step, batch in steps]
        rows: list[dict[int, list[list[int]]]] = [{} for _ in steps]
        for number in range(self.count):
            part = self._whole(number)
            for at, begins in enumerate(asked):
                own = (begins < (number + 1) * self.span) & (begins + WIDTH + 1 > number * self.span)
                for row in np.flatnonzero(own).tolist():
                    found = self._search(part, int(begins[row]), int(begins[row]) + WIDTH + 1)
                    rows[at].setdefault(row, []).extend(found)
            self.index.append(self._kept(part, number))
        for (step, batch), found in zip(steps, rows, strict=True):
            self.documents[step, batch] = [document for row in sorted(found) for document in found[row]]

    def _whole(self, number: int) -> Part:
        """A part with all its documents, at the place of the last."""
        self.lengths = np.roll(self.lengths, 7919)
        self.starts = number * self.span + np.cumsum(self.lengths) - self.lengths
        self.read: set[tuple[int, int]] = set()
        columns = (None, self.starts, self.lengths, np.full(INDEX_DOCUMENTS, number, "<i4"), None)
        with self.path.open("r+b") as out:
            for at, column in zip(self.form.stats["at"], columns, strict=True):
                if column is not None:
                    out.seek(at)
                    out.write(column.data)
        store.remember(self.path, self.form.blob)  # what was drawn is what is searched
        stats = {**self.form.stats, "start": number * self.span, "tokens": self.span, "parts": [number, number]}
        return self.form.model_copy(update={"name": f"index-{number:05d}.arrow", "stats": stats})

    def _search(self, part: Part, start: int, stop: int) -> list[list[int]]:
        """The documents of a range, by what was drawn; what a search for them reads is noted."""

        def noting(file: int, size: int, at: int) -> bytes:
            self.read.add((at, size))
            return pread(file, size, at)

        pread, os.pread = os.pread, noting
        try:
            with open_lookup(self.ctx.store, part) as lookup:
                lookup.values(*lookup.rows(start, stop))
        finally:
            os.pread = pread
        first, last = max(0, int(self.starts.searchsorted(start, "right")) - 1), int(self.starts.searchsorted(stop))
        return [[int(self.starts[row]), int(self.lengths[row]), row] for row in range(first, last)]

    def _kept(self, part: Part, number: int) -> Part:
        blob = part.blob.model_copy(update={"md5": f"{number:032x}"})
        path = self.ctx.store.path(blob)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out, self.path.open("rb") as whole:
            out.truncate(blob.bytes)
            for at, size in self.read:
                out.seek(at)
                out.write(os.pread(whole.fileno(), size, at))
        store.remember(path, blob)  # as after the first reader of the machine, who would find holes here
        return part.model_copy(update={"blob": blob})

    def publish(self) -> tuple[str, str]:
        """Digests of the mixture and the shards, saved."""
        size = Shards().tokens_per_shard
        nothing = Blob(md5="0" * 32, sha256="0" * 64, bytes=2 * size)
        shards = [
            Part(name=f"shard-{i:05d}.bin", blob=nothing, stats={"start": i * size, "tokens": size})
            for i in range(self.tokens // size)
        ]
        stats = {"documents": self.count * INDEX_DOCUMENTS, "tokens": self.tokens, "end_of_text": 0, "dtype": "<u2"}
        made = self.ctx.refs.save(_manifest("web/shards", (*shards, *self.index), stats))
        self.plan["buckets"]["web"]["index"] = {
            "tokens": self.tokens,
            "parts": [part.model_dump(mode="json") for part in self.index],
        }
        mix = _manifest("mixture", (), self.plan).model_copy(update={"inputs": {"web/shards": made}})
        return self.ctx.refs.save(mix), made


def _manifest(asset: str, parts: tuple[Part, ...], stats: dict[str, Any]) -> Manifest:
    return Manifest(asset=asset, step="drawn", version="1", params={}, inputs={}, parts=parts, stats=stats)


def _row(measure: str, started: float) -> dict[str, Any]:
    return {"measure": measure, "value": time.perf_counter() - started, "unit": "s"}


if __name__ == "__main__":
    main()
