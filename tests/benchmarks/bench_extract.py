"""Extraction: our extractor in its own process against the bare library called in a loop, on the same pages.

    python tests/benchmarks/bench_extract.py [--megabytes 20] [--rounds 5] [FOLDER ...]

Pages are HTML files of the folders given, or of this machine's documentation and the standard library's pages as the
demo renders them. Bare means: decode, parse, main content, nothing else; ours adds the child process, the limit per
page, the page's facts, and bytes through pipes. Both run in turns in the same run, the best round counts. Printed:
pages/s, MB of HTML per second, and ours / bare by wall clock and by CPU time of all processes together.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plinth.corpus.extract import Extractor, Page
from plinth.recipe.sources import Extraction

FOLDERS = ("/usr/share/doc", "/usr/lib/python3", "/usr/local/lib")
BATCH_PAGES = 64
LARGEST_BYTES = 500_000
RESULTS = Path(__file__).parent / "results" / "extract.json"


def real_pages(folders: Sequence[str], megabytes: float) -> list[bytes]:
    """HTML pages of this machine in a fixed shuffled order, and pages that the demo renders where there are few."""
    files = sorted({path for folder in folders for path in Path(folder).rglob("*.htm*") if path.is_file()})
    random.Random(0).shuffle(files)
    pages, held = [], 0
    for path in files:
        data = path.read_bytes()
        if 1000 <= len(data) <= LARGEST_BYTES and held < megabytes * 1e6:
            pages.append(data)
            held += len(data)
    if held < megabytes * 5e5:
        from jobs.harvest.web import module_names, render

        rendered = render([f"module:{name}" for name in module_names()])
        pages += [html.encode("utf-8", "replace") for html in rendered.values()]
    random.Random(1).shuffle(pages)
    ends = [sum(map(len, pages[:i])) for i in range(len(pages) + 1)] if len(pages) < 5000 else []
    return pages[: next((i for i, end in enumerate(ends) if end > megabytes * 1e6), len(pages))]


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
    for at in range(0, len(pages), BATCH_PAGES):
        for _ in extractor.extract([Page(page) for page in pages[at : at + BATCH_PAGES]]):
            pass


def measure(name: str, pages: Sequence[bytes], rounds: int) -> dict[str, Any]:
    """Best of `rounds`, bare and ours in turns."""
    walls: dict[str, list[float]] = {"bare": [], "ours": []}
    cpus: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(rounds):
        started, cpu = time.perf_counter(), time.process_time()
        BARE[name](pages)
        walls["bare"].append(time.perf_counter() - started)
        cpus["bare"].append(time.process_time() - cpu)
        cpus["ours"].append(_with_child(name, pages, walls["ours"]) - _with_child(name, [], []))
    size = sum(map(len, pages)) / 1e6
    found: dict[str, Any] = {"engine": name, "pages": len(pages), "megabytes": round(size, 1)}
    for who in ("bare", "ours"):
        best = min(walls[who])
        found[who] = {"pages_per_s": round(len(pages) / best), "mb_per_s": round(size / best, 2)}
        found[who]["cpu_s"] = round(min(cpus[who]), 3)
    found["ratio_wall"] = round(min(walls["bare"]) / min(walls["ours"]), 3)
    found["ratio_cpu"] = round(min(cpus["bare"]) / min(cpus["ours"]), 3)
    return found


def _with_child(name: str, pages: Sequence[bytes], walls: list[float]) -> float:
    """CPU seconds of this process and the child, its start included; the wall clock without it."""

    def cpu() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    before = cpu()
    with Extractor(Extraction(engine=name, seconds_per_page=60)) as extractor:
        list(extractor.extract([Page(b"<p>start</p>")]))
        started = time.perf_counter()
        ours(extractor, pages)
        walls.append(time.perf_counter() - started)
    return cpu() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    pages = real_pages(args.folders, args.megabytes)
    found = [
        measure("resiliparse", pages, args.rounds),
        measure("trafilatura", pages[: max(1, len(pages) // 5)], max(1, args.rounds // 2)),
    ]
    for one in found:
        print(f"{one['engine']}: {one['pages']} pages, {one['megabytes']} MB")
        for who in ("bare", "ours"):
            figures = one[who]
            line = f"{figures['pages_per_s']:>6} pages/s  {figures['mb_per_s']:>6} MB/s  {figures['cpu_s']:>7} s of CPU"
            print(f"  {who:<5} {line}")
        print(f"  ours / bare: {one['ratio_wall']} by wall clock, {one['ratio_cpu']} by CPU time")
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
