"""MinHash signatures per core: ours compared with datatrove, datasketch, rensa and Daft, on the same real documents.

Word 5-grams, 112 permutations (14 bands of 8 rows). The documents are Python sources and the text files of
installed packages on this machine. Slow peers get an even sample of them; MB are of UTF-8 text, seconds are CPU time
of all threads of a process, so that a peer that uses two cores pays for both.

Peers do not cut the same words. Daft splits at single spaces. Three figures of it: `daft` takes punctuation away
first, by its own normalization (`a.b(c)` is one word to it and three to us: a quarter fewer n-grams); `daft-words`
does so on texts that were cut into our words before the clock started, and hashes the same n-grams; `daft-raw` is its
`minhash` alone, on texts as they are: case and indentation count, and so two formattings of a text differ.

    python tests/benchmarks/bench_minhash.py [--megabytes 40] [--daft-python OTHER_VENV/bin/python]

`--daft-python` measures a Daft from another environment, in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

# before anything starts a pool of threads
for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("DAFT_PROGRESS_BAR", "0")

import pyarrow as pa  # noqa: E402

N, BANDS, ROWS = 5, 14, 8
PERMUTATIONS = BANDS * ROWS
RESULTS = Path(__file__).parent / "results" / "minhash.json"


def real_documents(megabytes: float) -> list[str]:
    """Python sources and text files of this machine, in a fixed order, of 200 bytes to 1 MB."""
    roots = [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))]
    files = sorted(
        {path for root in roots for suffix in ("*.py", "*.txt", "*.md", "*.rst") for path in root.rglob(suffix)}
    )
    texts, total = [], 0
    stride = max(1, len(files) // 20_000)
    for path in [path for start in range(stride) for path in files[start::stride]]:
        data = path.read_bytes()
        if 200 <= len(data) <= 2**20:
            texts.append(data.decode("utf-8", "replace"))
            total += len(data)
        if total >= megabytes * 1e6:
            break
    return texts


def megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def ours(texts: Sequence[str]) -> Callable[[], Any]:
    from plinth_text import similarity

    column = pa.array(texts, pa.large_string())
    a, b = similarity.permutations(PERMUTATIONS, 1)
    similarity.signatures(column[:2], N, a, b)
    return lambda: similarity.signatures(column, N, a, b)


def datatrove(texts: Sequence[str]) -> Callable[[], Any]:
    import xxhash
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

    step = MinhashDedupSignature(
        tempfile.mkdtemp(), MinhashConfig(n_grams=N, num_buckets=BANDS, hashes_per_bucket=ROWS)
    )
    try:
        step.get_shingles("a b c d e f")
    except TypeError:  # xxhash 4 hashes bytes only, which datatrove 0.10.1 does not know
        step._hash_func = lambda shingle: xxhash.xxh64_intdigest(shingle.encode())
    step.get_signature(step.get_shingles("load the tokenizer before the clock starts"))

    def run() -> None:
        for text in texts:
            shingles = step.get_shingles(text)
            if shingles.size:
                step.get_signature(shingles)

    return run


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _shingles(text: str) -> list[str]:
    words = _words(text)
    return [" ".join(words[i : i + N]) for i in range(max(1, len(words) - N + 1))]


def datasketch(texts: Sequence[str]) -> Callable[[], Any]:
    from datasketch import MinHash

    def run() -> None:
        for text in texts:
            MinHash(num_perm=PERMUTATIONS, seed=1).update_batch([shingle.encode() for shingle in _shingles(text)])

    return run


def rensa(texts: Sequence[str]) -> Callable[[], Any]:
    from rensa import RMinHash

    def run() -> None:
        for text in texts:
            sketch = RMinHash(num_perm=PERMUTATIONS, seed=1)
            sketch.update(_shingles(text))
            sketch.digest()

    return run


def daft(texts: Sequence[str], normalised: bool = True) -> Callable[[], Any]:
    import daft

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    frame = daft.from_pydict({"text": list(texts)}).collect()

    def run() -> None:
        words = daft.col("text")
        if normalised:
            words = words.normalize(remove_punct=True, lowercase=True, nfd_unicode=True, white_space=True)
        frame.select(words.minhash(num_hashes=PERMUTATIONS, ngram_size=N, seed=1, hash_function="xxhash3_64")).collect()

    return run


def daft_words(texts: Sequence[str]) -> Callable[[], Any]:
    """Daft on texts in which white space alone divides the words, as we cut them."""
    return daft([" ".join(_words(text)) for text in texts])


def daft_raw(texts: Sequence[str]) -> Callable[[], Any]:
    """Daft without normalization."""
    return daft(texts, normalised=False)


PEERS: dict[str, tuple[Callable[[Sequence[str]], Callable[[], Any]], int]] = {
    "plinth": (ours, 1),  # name: (maker, take every n-th document)
    "datatrove": (datatrove, 40),
    "datasketch": (datasketch, 8),
    "rensa": (rensa, 4),
    "daft": (daft, 1),
    "daft-words": (daft_words, 1),
    "daft-raw": (daft_raw, 1),
}
DISTRIBUTIONS = dict.fromkeys(("daft-words", "daft-raw"), "daft")  # where the peer's name is not that of its package


def measure(name: str, texts: Sequence[str], repeats: int = 5) -> dict[str, Any]:
    """Best of `repeats` runs in CPU seconds of this process, which counts threads a peer starts against it."""
    make, stride = PEERS[name]
    sample = texts[::stride]
    run = make(sample)
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
    size = megabytes(sample)
    return {"peer": name, "documents": len(sample), "megabytes": size, "cpu_s": best, "mb_per_s": size / best}


def apart(name: str, mb: float, python: str) -> dict[str, Any]:
    """The same in a process of its own, so that no peer's threads or memory touch another's."""
    command = [python, __file__, "--only", name, "--megabytes", str(mb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"peer": name, "error": last}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--only", choices=sorted(PEERS))
    parser.add_argument("--daft-python")
    options = parser.parse_args()
    if options.only:
        found = measure(options.only, real_documents(options.megabytes))
        print(json.dumps({**found, "version": version(DISTRIBUTIONS.get(options.only, options.only))}))
        return
    rows, load = [], os.getloadavg()[0]
    for name in PEERS:
        rows.append(apart(name, options.megabytes, sys.executable))
        print(_line(rows[-1], rows[0]))
    for name in ("daft", *DISTRIBUTIONS) if options.daft_python else ():
        rows.append(apart(name, options.megabytes, options.daft_python))
        print(_line(rows[-1], rows[0]))
    result = {"ngram": N, "permutations": PERMUTATIONS, "load": load, "rows": rows}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def _line(row: dict[str, Any], reference: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['peer']:<12} {row['error']}"
    times = reference["mb_per_s"] / row["mb_per_s"]
    speed = f"{row['mb_per_s']:>9.2f} MB/s of {row['megabytes']:>6.1f} MB"
    return f"{row['peer']:<12}{row['version']:<10}{speed}   ours x{times:.1f}"


if __name__ == "__main__":
    main()
