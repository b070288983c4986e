"""Steps before and after extraction that read every source or every id: digests of sources, repeats of a snapshot.

    python tests/benchmarks/bench_sources.py

A gzipped WARC of generated pages is hashed and cut at its members; ids of 4.8 million documents in 12 parts are
compared.
Per second of one core's work. Writes tests/benchmarks/results/sources.json.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import tempfile
import time
from functools import partial
from pathlib import Path

import pyarrow as pa

from plinth.compute.context import Context
from plinth.corpus.documents.removal import drop_repeats
from plinth.corpus.sources.inventory import cutter
from plinth.records import Part
from plinth.storage import listing
from plinth.storage.parts import DOCUMENT_SCHEMA, REJECT_SCHEMA, write_batches, write_table
from plinth.storage.workspace import Workspace

ROOT = Path(__file__).parents[2]
PAGES, PIECE_BYTES = 2_500, 8 * 2**20
PARTS, ROWS = 12, 400_000
HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"


def record(number: int, words: list[bytes], picks: random.Random) -> bytes:
    """A response with a page of 6,000 words."""
    body = HTTP + b"<html><body><p>" + b" ".join(picks.choices(words, k=6000)) + b"</body></html>"
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/{number}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


def digests(folder: Path) -> float:
    """MB of HTML per second, hashed compressed and inflated to be cut."""
    picks, words = random.Random(1), (ROOT / "docs" / "recipe.md").read_bytes().split()
    held = 0
    with (folder / "a.warc.gz").open("wb") as file:
        for number in range(PAGES):
            raw = record(number, words, picks)
            held += len(raw)
            file.write(gzip.compress(raw, 6))
    started = time.process_time()
    (found,) = listing.inventory(str(folder), folder, (), partial(cutter, "warc", piece_bytes=PIECE_BYTES))
    assert found.pieces
    return held / (time.process_time() - started) / 1e6


def repeats(folder: Path) -> float:
    """Documents per second."""
    ctx = Context(Workspace(folder).ensure())
    rejects = write_batches(ctx.store, "rejects", REJECT_SCHEMA, [], stats={"rejects": {}, "rejected_bytes": 0})
    pairs = [(_part(ctx, number), rejects) for number in range(PARTS)]
    started = time.process_time()
    drop_repeats(ctx, "web", pairs)
    return PARTS * ROWS / (time.process_time() - started)


def _part(ctx: Context, number: int) -> Part:
    ids = [hashlib.sha256(b"%d" % (number * ROWS + row)).digest()[:16] for row in range(ROWS)]
    same = {"text": "x", "uri": "u", "snapshot": "s", "licence": "MIT", "mime": "text/plain", "extra": "{}"}
    columns = {"id": pa.array(ids, pa.binary(16)), "source_bytes": [1] * ROWS, "captured_at": [None] * ROWS}
    columns |= {name: [value] * ROWS for name, value in same.items()}
    table = pa.table([pa.array(columns[field.name], field.type) for field in DOCUMENT_SCHEMA], schema=DOCUMENT_SCHEMA)
    return write_table(ctx.store, f"part-{number}", table, stats={"text_bytes": ROWS, "source_bytes": ROWS})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sources, workspace = Path(temporary, "sources"), Path(temporary, "workspace")
        sources.mkdir()
        found = {"html_megabytes_per_second": digests(sources), "repeats_documents_per_second": repeats(workspace)}
    for name, value in found.items():
        print(f"{name:>30} {value:,.0f}")
    target = ROOT / "tests" / "benchmarks" / "results" / "sources.json"
    target.write_text(json.dumps({name: round(value, 1) for name, value in found.items()}, indent=2) + "\n")
