"""The order of 10^12 tokens: cost to plan, open, list and invert; constant shares, and a ramp.

    python tests/benchmarks/bench_order.py

The mixture exists on paper: three buckets of 10^8 sequences of 4,096, a million blocks of 256. Every listed sequence
is found again through the inverse. Costs do not depend on the length of the run: 10^9 tokens are measured for
comparison. Writes tests/benchmarks/results/order.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plinth.records import Manifest
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order
from plinth.tokens.order.steps import BatchChange, schedule

RESULTS = Path(__file__).parent / "results" / "order.json"
AVAILABLE = {"code": 40_000_003, "web": 150_000_001, "books": 9_999_991}
START, END = {"code": 2, "web": 7, "books": 1}, {"code": 4, "web": 3, "books": 3}
BATCH, REPEATS = 2048, 7


def main() -> None:
    """Measure and print a table."""
    rows = [_measure(tokens, kind) for tokens in (10**9, 10**12) for kind in ("constant", "ramp")]
    RESULTS.write_text(json.dumps({"batch_sequences": BATCH, "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(
            "  ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )


def _measure(tokens: int, kind: str) -> dict[str, Any]:
    phase = Phase(name="p", fraction=1.0, weights=START, to_weights=END if kind == "ramp" else None)
    params = Mixture(sequence_tokens=4096, total_tokens=tokens, phases=(phase,), max_epochs=1e9)
    plan_s, stats = _timed(lambda: mixture.plan(params, AVAILABLE), 1)
    manifest = Manifest(asset="mixture", step="m", version="1", params={}, inputs={}, parts=(), stats=stats)
    open_s, order = _timed(lambda: Order(manifest), REPEATS)
    warm_up = tuple(
        BatchChange(from_tokens=tokens // 100 * n, global_batch_sequences=BATCH // 8 * n) for n in range(2, 9)
    )
    steps = schedule(order.sequences, 4096, BATCH // 8, warm_up)
    middle = steps.total // 2
    found = [_timed(lambda at=at: Order(manifest).step(at, steps), 1) for at in range(middle, middle + REPEATS)]
    refs = found[-1][1]
    inverse_s, _ = _timed(lambda: [order.positions(ref.stream, ref.index) for ref in refs[:50]], 1)
    exact = all((ref.epoch, ref.position) in order.positions(ref.stream, ref.index) for ref in refs[::40])
    realised = stats["realised"]
    return {
        "tokens": tokens,
        "shares": kind,
        "blocks": stats["phases"][0]["blocks"],
        "manifest_bytes": len(json.dumps(stats)),
        "plan_and_measure_s": plan_s,
        "open_ms": open_s * 1e3,
        "list_a_step_ms": statistics.median(seconds for seconds, _ in found) * 1e3,
        "find_a_sequence_ms": inverse_s * 1e3 / 50,
        "inverse_exact": exact,
        "max_share_error": realised["max_share_error"],
        "max_drift_sequences": realised["max_drift_sequences"],
    }


def _timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    best, value = float("inf"), None
    for _ in range(repeats):
        started = time.perf_counter()
        value = function()
        best = min(best, time.perf_counter() - started)
    return best, value


if __name__ == "__main__":
    main()
