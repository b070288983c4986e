"""Seal and verify an export, against bare SHA-256 of the same bytes by the same number of threads.

    python tests/benchmarks/bench_exports.py [--files 4] [--megabytes 512]

Best of three, files in the page cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plinth.compute.context import Context
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse, enrolment
from plinth.trust.pin import Trust
from plinth.trust.standalone_verify import EXPORT, sha256, verify
from registry.exports.sealed import ExportClaim, seal


def best(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Seconds of the quickest of three calls."""
    seconds = []
    for _ in range(3):
        before()
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=512)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ[TRUST_VARIABLE] = f"{place}/trust"
        ctx = Context(Workspace(f"{place}/workspace").ensure())
        enrolment.initialise(ctx.workspace, "bench", ["anna@example.org"], demo=True)
        directory = Path(place) / "model"
        directory.mkdir()
        paths = [directory / f"model-{number}.safetensors" for number in range(given.files)]
        for path in paths:
            path.write_bytes(os.urandom(1 << 20) * (given.megabytes // given.files))
        measure(ctx, directory, paths, given.megabytes / 1000)


def measure(ctx: Context, directory: Path, paths: list[Path], gigabytes: float) -> None:
    claim = ExportClaim(name="bench:1", status="UNRELEASED", checkpoint="0" * 64)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        bare = best(lambda: list(pool.map(sha256, paths)))

    def unseal() -> None:
        for name in (EXPORT, "model.sig"):
            (directory / name).unlink(missing_ok=True)

    sealing = best(lambda: seal(ctx, directory, claim), unseal)
    root = ctx.workspace.root.parent / "trust" / "root.json"
    verifying = best(lambda: verify(directory, root, unreleased=True))
    signer, content = Trust.of(ctx.workspace).signer("trainer"), dsse.statement("urn:bench", {"x": "0" * 64}, {})
    print(f"bare SHA-256 {gigabytes / bare:.2f} GB/s; one signature {best(lambda: dsse.seal(content, signer)):.4f} s")
    print(f"verify {gigabytes / verifying:.2f} GB/s, {bare / verifying:.0%} of bare")
    print(f"seal {gigabytes / sealing:.2f} GB/s, {bare / sealing:.0%} of bare")


if __name__ == "__main__":
    main()
