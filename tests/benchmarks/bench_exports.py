"""Sign and verify a model, and seal and verify an export, compared with bare BLAKE3 and SHA-256 of the same files.

    python tests/benchmarks/bench_exports.py [--files 4] [--megabytes 1024] [--rounds 9]

Every round measures all of it, one after the other, with as many threads as cores for each; the ratio to bare BLAKE3 is
the median of the rounds' own ratios, so that other work on the machine weighs on both. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blake3 import blake3

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.provenance.statements import PROVENANCE_SCHEMA
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import enrolment, standalone_verify
from plinth.trust.root import Trust
from plinth_registry import signing
from plinth_registry.exports import MODEL_SIGNATURE, ExportClaim, seal

CLAIM = ExportClaim(name="bench:1", status="UNRELEASED", checkpoint="0" * 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ[TRUST_VARIABLE] = f"{place}/trust"
        ctx = Context(Workspace(f"{place}/workspace").ensure())
        enrolment.initialise(ctx.workspace, "bench", ["anna@example.org"], demo=True)
        work = bare(Path(place), given.files, given.megabytes)
        work |= of_model(ctx, Path(place)) | of_export(ctx, Path(place))
        measure(work, given.rounds, given.megabytes / 1000)


def bare(place: Path, files: int, megabytes: int) -> dict[str, Callable[[], object]]:
    """The files, and their digests alone."""
    directory = place / "model"
    directory.mkdir()
    paths = [directory / f"model-{number}.safetensors" for number in range(files)]
    for path in paths:
        path.write_bytes(os.urandom(1 << 20) * (megabytes // files))

    def sha256() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(standalone_verify.digest_of, paths))

    def blake() -> None:
        for path in paths:
            blake3(max_threads=blake3.AUTO).update_mmap(path).digest()

    return {"bare BLAKE3": blake, "bare SHA-256": sha256}


def of_model(ctx: Context, place: Path) -> dict[str, Callable[[], object]]:
    """Return the operations on a model in the workspace: signed once, verified at promotion and before every load."""
    directory, trust = place / "model", Trust.of(ctx.workspace)
    subjects = {path.name: standalone_verify.digest_of(path) for path in directory.iterdir()}
    made: dict[str, Any] = {
        "schema": PROVENANCE_SCHEMA,
        "files": {name: {"sha256": own, "bytes": 0} for name, own in subjects.items()},
        "recipe": {"name": "bench", "fingerprint": "0" * 64},
        "run": {"id": "bench", "key": "0" * 64},
        "checkpoint": {"asset": "checkpoint", "digest": "0" * 64},
        "code": {"version": "0", "sha256": "0" * 64},
        "chain": [],
        "sources": {},
        "materials": {},
    }
    (directory / signing.PROVENANCE_FILE).write_bytes(fingerprint.canonical(made))
    subjects[signing.PROVENANCE_FILE] = fingerprint.digest(made)
    return {
        "sign a model": lambda: signing.sign(directory, made, subjects, trust.signer("trainer")),
        "verify a model": lambda: signing.verify(directory, trust.authority("trainer")),
    }


def of_export(ctx: Context, place: Path) -> dict[str, Callable[[], object]]:
    """The same files as an export."""
    directory, root = place / "export", ctx.workspace.trust_folder / "root.json"
    directory.mkdir()
    for path in (place / "model").glob("*.safetensors"):
        (directory / path.name).write_bytes(path.read_bytes())

    def sealed() -> None:
        for name in (standalone_verify.EXPORT, MODEL_SIGNATURE):
            (directory / name).unlink(missing_ok=True)
        seal(ctx, directory, CLAIM)

    return {
        "seal an export": sealed,
        "verify an export": lambda: standalone_verify.verify(directory, root, unreleased=True),
    }


def measure(work: dict[str, Callable[[], object]], rounds: int, gigabytes: float) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    known = seconds["bare BLAKE3"]
    for name, taken in seconds.items():
        ratios = [own / each for own, each in zip(known, taken, strict=True)]
        low, high = min(ratios), max(ratios)
        middle = f"{statistics.median(ratios):.0%} of bare BLAKE3 ({low:.0%} to {high:.0%})"
        print(f"{name:18} {gigabytes / statistics.median(taken):6.2f} GB/s, {middle}")


if __name__ == "__main__":
    main()
