"""RegMix's published runs: how well does the surrogate rank mixtures that it has not seen?

    python tests/benchmarks/bench_regmix.py FOLDER [--out FILE]

FOLDER has the CSVs of RegMix's repository (Liu et al., arXiv:2407.01492), which are not shipped: train_mixture_1m.csv,
train_pile_loss_1m.csv, and test_mixture_* and test_pile_loss_* of 1m and, if there, 60m and 1B. For each domain the
surrogate is chosen and fitted on the 512 training runs of 1M parameters alone; then its ranks of the test mixtures are
compared with those of their losses (Spearman), once. The training runs decide the family and all settings by
leave-one-out; the tests decide nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from plinth_lab.mixture.surrogate import FittedSurrogate, Floats, Kernel, fit

RESULTS = Path(__file__).parent / "results" / "regmix.json"
TESTS = ("1m", "60m", "1B")
PILE_CC = "pile_cc"


def table(path: Path) -> dict[str, dict[str, float]]:
    """Values by run and column."""
    with path.open(newline="") as file:
        return {
            row.pop("index"): {name: float(value) for name, value in row.items()} for row in csv.DictReader(file)
        }


def runs(folder: Path, part: str, scale: str) -> tuple[Floats, dict[str, Floats]]:
    """Shares [N, K] and losses [N] by domain of the runs that have both."""
    mixtures, losses = table(folder / f"{part}_mixture_{scale}.csv"), table(folder / f"{part}_pile_loss_{scale}.csv")
    both = [run for run in mixtures if run in losses]
    shares = np.array([list(mixtures[run].values()) for run in both])
    domains = [name for name in next(iter(losses.values())) if name.endswith("_val_loss")]
    named = {name.removeprefix("metric/the_pile_").removesuffix("_val_loss"): name for name in domains}
    found = {short: np.array([losses[run][name] for run in both]) for short, name in named.items()}
    return shares / shares.sum(1, keepdims=True), found


def chosen(fitted: FittedSurrogate) -> dict[str, Any]:
    """Return the choice of leave-one-out and its errors in nats per token."""
    row: dict[str, Any] = {"family": fitted.family, "errors": {name: round(e, 4) for name, e in fitted.errors.items()}}
    if isinstance(fitted.loss, Kernel):
        kernel = fitted.loss
        row |= {"features": vars(kernel.features), "width": kernel.width, "ridge": kernel.ridge}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    shares, losses = runs(given.folder, "train", "1m")
    started = time.process_time()
    fitted = {domain: fit(shares, values) for domain, values in losses.items()}
    seconds = time.process_time() - started
    found: dict[str, Any] = {
        "training_runs": len(shares), "seconds_per_fit": round(seconds / len(fitted), 2),
        "chosen": {domain: chosen(one) for domain, one in fitted.items()}, "spearman": {},
    }  # fmt: skip
    for scale in TESTS:
        if not (given.folder / f"test_mixture_{scale}.csv").exists():
            print(f"no test mixtures of {scale}: left out")
            continue
        tested, truth = runs(given.folder, "test", scale)
        ranks = {name: float(spearmanr(fitted[name].loss(tested), truth[name]).statistic) for name in fitted}
        ranks = {name: round(value, 4) for name, value in ranks.items()}
        mean = round(float(np.mean(list(ranks.values()))), 4)
        found["spearman"][scale] = {"runs": len(tested), PILE_CC: ranks[PILE_CC], "mean": mean, "domains": ranks}
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
