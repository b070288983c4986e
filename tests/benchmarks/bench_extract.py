"""Extraction: our extractor in its own process against the bare library called in a loop, on the same pages.

    python tests/benchmarks/bench_extract.py [--megabytes 8] [--rounds 7] [FOLDER ...]

Pages are HTML files of the folders given, or of this machine's documentation and the standard library's pages as the
demo renders them, in three bands of size. Bare means: decode, parse, main content, nothing else; ours adds the child
process, the limit per page, the page's facts, and bytes through pipes. Both run in turns in the same run, the best
round counts. Printed: pages/s, MB of HTML per second, and ours / bare by wall clock and by CPU time of both processes
together, the child's start left out: it is a spare from the part before, and its cost is printed by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from plinth.compute.worker import SPARES
from plinth.corpus.extract.extractor import Extractor, extracted
from plinth.corpus.extract.page import Page
from plinth.corpus.sources.parameters import Extraction
from plinth.corpus.sources.record import RawRecord

FOLDERS = ("/usr/share/doc", "/usr/lib/python3", "/usr/lib/node_modules", "/usr/local/lib")
#: Bytes of HTML per page, from and below.
BANDS = {"1.5 KB": (1_000, 2_500), "6.5 KB": (5_000, 8_500), "34 KB": (25_000, 45_000)}
#: A round shorter than this measures the clock.
ROUND_PAGES = 1000
#: Read before the clock starts, by either: libraries compile patterns, load tables and grow their memory at their first
#: pages, and a spare child has read the part before.
WARM_PAGES = 250
RESULTS = Path(__file__).parent / "results" / "extract.json"


def real_pages(folders: Sequence[str], megabytes: float) -> dict[str, list[bytes]]:
    """HTML pages by band, in a fixed shuffled order; pages that the demo renders are among them."""
    from plinth_jobs.harvest.run import module_names, render

    files = sorted({path for folder in folders for path in Path(folder).rglob("*.htm*") if path.is_file()})
    random.Random(0).shuffle(files)
    rendered = render([f"module:{name}" for name in module_names()])
    found: dict[str, list[bytes]] = {band: [] for band in BANDS}
    for page in chain((html.encode("utf-8", "replace") for html in rendered.values()), map(Path.read_bytes, files)):
        for band, (low, high) in BANDS.items():
            if low <= len(page) < high and sum(map(len, found[band])) < megabytes * 1e6:
                found[band].append(page)
    return {band: pages for band, pages in found.items() if pages}


def bare_resiliparse(pages: Sequence[bytes]) -> None:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    for page in pages:
        html = bytes_to_str(page, detect_encoding(page))
        extract_plain_text(html, main_content=True, preserve_formatting=True, alt_texts=False)


def bare_trafilatura(pages: Sequence[bytes]) -> None:
    from trafilatura import extract

    for page in pages:
        extract(page, favor_precision=True, include_comments=False)


BARE: dict[str, Callable[[Sequence[bytes]], None]] = {"resiliparse": bare_resiliparse, "trafilatura": bare_trafilatura}


def ours(extractor: Extractor, pages: Sequence[bytes]) -> None:
    records = (RawRecord(str(i), page, "text/html", "", len(page), "") for i, page in enumerate(pages))
    for _ in extracted(records, extractor, Counter()):
        pass


def measure(name: str, pages: Sequence[bytes], rounds: int) -> dict[str, Any]:
    """Best of `rounds`, bare and ours in turns."""
    walls: dict[str, list[float]] = {"bare": [], "ours": []}
    cpus: dict[str, list[float]] = {"bare": [], "ours": []}
    starts = []
    BARE[name](pages[:WARM_PAGES])
    for _ in range(rounds):
        started, cpu = time.perf_counter(), time.process_time()
        BARE[name](pages)
        walls["bare"].append(time.perf_counter() - started)
        cpus["bare"].append(time.process_time() - cpu)
        with Extractor(Extraction(engine=name, seconds_per_page=60)) as extractor:
            extractor.extract([Page(page) for page in pages[:WARM_PAGES]])
            assert extractor._stream._worker is not None
            begin = _cpu_of(extractor._stream._worker.pid)
            starts.append(begin)
            started, cpu = time.perf_counter(), time.process_time()
            ours(extractor, pages)
            walls["ours"].append(time.perf_counter() - started)
            cpus["ours"].append(time.process_time() - cpu + _cpu_of(extractor._stream._worker.pid) - begin)
        SPARES.end()
    size = sum(map(len, pages)) / 1e6
    found: dict[str, Any] = {"engine": name, "pages": len(pages), "megabytes": round(size, 1)}
    for who in ("bare", "ours"):
        best = min(walls[who])
        found[who] = {"pages_per_s": round(len(pages) / best), "mb_per_s": round(size / best, 2)}
        found[who]["cpu_us_per_page"] = round(min(cpus[who]) / len(pages) * 1e6, 1)
    found["ratio_wall"] = round(min(walls["bare"]) / min(walls["ours"]), 3)
    found["ratio_cpu"] = round(min(cpus["bare"]) / min(cpus["ours"]), 3)
    return found | {"start_cpu_s": round(min(starts), 2)}


def _cpu_of(pid: int) -> float:
    """CPU seconds of a running process, by the kernel's clock of it (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--megabytes", type=float, default=8, help="of HTML per band")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    found = []
    for band, pages in real_pages(args.folders, args.megabytes).items():
        several = list(pages) * max(1, ROUND_PAGES // len(pages))
        for engine, sample, rounds in (
            ("resiliparse", several, args.rounds),
            ("trafilatura", several[: ROUND_PAGES // 5], max(2, args.rounds // 2)),
        ):
            load = os.getloadavg()[0]
            found.append({"band": band, **measure(engine, sample, rounds), "load_average": round(load, 1)})
            show(found[-1])
    machine = {"cores": os.cpu_count(), "processor": platform.machine()}
    RESULTS.write_text(json.dumps({"machine": machine, "runs": found}, indent=2) + "\n")


def show(one: dict[str, Any]) -> None:
    print(f"{one['band']}, {one['engine']}: {one['pages']} pages, {one['megabytes']} MB, load {one['load_average']}")
    for who in ("bare", "ours"):
        figures = one[who]
        line = f"{figures['pages_per_s']:>6} pages/s  {figures['mb_per_s']:>6} MB/s"
        print(f"  {who:<5} {line}  {figures['cpu_us_per_page']:>8} us of CPU per page")
    print(f"  ours / bare: {one['ratio_wall']} by wall clock, {one['ratio_cpu']} by CPU time")


if __name__ == "__main__":
    main()
