"""Every game day at many instants: how many passed, what failed, seconds of the clock and of the processors.

    python tests/benchmarks/bench_gamedays.py [--instants 18] [--seed 1] [--only NAME …] [--append]

The instants of a game day are drawn by the seed. `--append` keeps what an earlier call has recorded of other game days.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
#: Instants at most of game days that train and release whole models.
AT_MOST = {"bad-release": 3}

RESULTS = Path(__file__).parent / "results" / "gamedays.json"
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

import plinth  # noqa: E402
from plinth_ops.gamedays.gameday import TABLE, GameDayRecord, Instant, find  # noqa: E402
from plinth_ops.gamedays.play import play  # noqa: E402


def processor_s() -> float:
    """Seconds of the processors of this process and of all that have ended below it."""
    found = sum(os.times()[:4])
    for child in psutil.Process().children():
        times = child.cpu_times()
        found += times.user + times.system + times.children_user + times.children_system
    return found


def row(record: GameDayRecord, spent_s: float) -> dict[str, Any]:
    """Return the recorded row of a game day."""
    alerts = [one.alert_s for one in record.instants if one.alert_s is not None]
    return {
        "instants": len(record.instants),
        "passed": sum(one.passed for one in record.instants),
        "failed": {one.number: [one.struck, *one.failures] for one in record.instants if not one.passed},
        "alert_s": [min(alerts), max(alerts)] if alerts else None,
        "seconds": round(record.seconds, 1),
        "processor_seconds": round(spent_s, 1),
        "phases": dict(record.phases),
        "mechanism": record.mechanism,
        "seed": record.seed,
        "struck": [one.struck for one in record.instants],
    }


def machine() -> dict[str, Any]:
    """Where and with what this was measured."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "plinth": plinth.__version__,
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def shown(instant: Instant) -> None:
    """A line an instant."""
    verdict = "passed" if instant.passed else "FAILED"
    print(
        f"  {instant.number:>3} {verdict} {instant.seconds:>6.1f} s  {instant.struck} {instant.failures or ''}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instants", type=int, default=18)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--append", action="store_true")
    given = parser.parse_args()
    kept = json.loads(RESULTS.read_bytes())["game_days"] if given.append and RESULTS.exists() else {}
    for name in given.only or TABLE:
        day, before = find(name), processor_s()
        print(name, flush=True)
        if why := day.missing():
            kept[name] = {"instants": 0, "passed": 0, "missing": why}
            continue
        instants = min(given.instants, AT_MOST.get(name, given.instants))
        record = play(day, seed=given.seed, instants=instants, on_instant=shown)
        kept[name] = row(record, processor_s() - before)
        total = {
            key: sum(one.get(key, 0) for one in kept.values())
            for key in ("instants", "passed", "seconds", "processor_seconds")
        }
        RESULTS.write_text(json.dumps({"machine": machine(), "together": total, "game_days": kept}, indent=1) + "\n")
        print(total, flush=True)


if __name__ == "__main__":
    main()
