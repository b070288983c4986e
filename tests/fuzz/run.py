"""Fuzz the targets with coverage feedback (atheris): `make fuzz`, for nights.

    python -m tests.fuzz.run            each target for a minute
    python -m tests.fuzz.run warc 3600  one target for an hour; what it learned is kept in .fuzz/TARGET

A finding is written to the working directory as `crash-…`; give it to the target to see it again.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import plinth_text

KEPT = Path(".fuzz")


def main(words: list[str]) -> int:
    """Each target in a process of its own: libFuzzer ends its process. Returns 1 when one found something."""
    if len(words) == 2:
        return _fuzz(words[0], int(words[1]))
    from tests.fuzz.targets import TARGETS

    seconds = words[0] if words else "60"
    failed = [
        name for name in TARGETS if subprocess.run([sys.executable, "-m", "tests.fuzz.run", name, seconds]).returncode
    ]
    print(f"{len(TARGETS)} targets, findings in: {', '.join(failed) or 'none'}")
    return bool(failed)


def _fuzz(name: str, seconds: int) -> int:
    import atheris

    # What is imported before cannot be instrumented any more, and compiled kernels must not be.
    for module in pkgutil.walk_packages(plinth_text.__path__, "plinth_text."):
        importlib.import_module(module.name)
    with atheris.instrument_imports(include=["plinth"]):
        from tests.fuzz.targets import SEEDS, TARGETS

    corpus = KEPT / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-rss_limit_mb=4096", str(corpus)], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
