"""Train combinations of divisions and compare each with one plain process.

    python tests/plinth/training/parallel/train_parallel_cases.py [--every] [--backend inductor]

trains cases that have every triple of values that is not refused, on two, four and eight ranks (`--every`: also every
case of two ranks, which takes hours), and writes the differences from one process into `parallel_cases.json` and the
tables of docs/parallel.md. Run it when the refusals change; a test fails until then.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[4]))
import parallel_cases
import parallel_runs
import parallel_tables
from parallel_runs import Difference

from plinth.training.config import RunConfig
from tests.ranks import run_ranks

#: Cases that one set of processes trains in turn.
CASES_PER_GROUP = 25


def train(
    cases: Sequence[parallel_cases.Case], make: Callable[..., RunConfig], backend: str
) -> Iterator[tuple[parallel_cases.Case, Difference]]:
    """Each case with its difference from one plain process; `backend` as in `parallel_runs.train_all`."""
    plain: dict[tuple[str, object], parallel_runs.Trained] = {}
    for ranks, some in groupby(sorted(cases, key=lambda case: case.ranks), key=lambda case: case.ranks):
        alike = list(some)
        for first in range(0, len(alike), CASES_PER_GROUP):
            configs = {case: make(**case.fields()) for case in alike[first : first + CASES_PER_GROUP]}
            named = {case.name: config for case, config in configs.items()}
            answers = run_ranks(ranks, parallel_runs.train_all, named, True, backend, timeout_s=parallel_runs.LONG_S)
            for case, config in configs.items():
                what = case.schedule, case.model
                if what not in plain:
                    plain[what] = parallel_runs.plain_run(config)
                yield case, parallel_runs.difference(config, answers, case.name, plain[what])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--backend", default="inductor", help="of torch.compile; as in `parallel_runs.train_all`")
    arguments = parser.parse_args()
    every = [case for case in parallel_cases.feasible() if case.ranks == 2] if arguments.every else []
    cases, begun = (
        parallel_cases.cover(list(dict.fromkeys([*parallel_cases.cover((), 2), *every])), 3),
        time.monotonic(),
    )
    trained: dict[parallel_cases.Case, Difference] = {}
    with tempfile.TemporaryDirectory() as workspace:
        for case, difference in train(cases, _maker(Path(workspace)), arguments.backend):
            trained[case] = difference
            wrong = difference.beyond(case.precision) or f"alike: {difference.loss:.2g}, {difference.norm:.2g}"
            print(f"{len(trained)} of {len(cases)}, {time.monotonic() - begun:.0f} s: {case.name}: {wrong}", flush=True)
    if any(difference.beyond(case.precision) for case, difference in trained.items()):
        sys.exit("some cases differ from one process: nothing was written")
    worst = {}
    for precision in parallel_cases.AXES["precision"]:
        own = [difference for case, difference in trained.items() if case.precision == precision]
        worst[precision] = [len(own), max(one.loss for one in own), max(one.norm for one in own)]
    names = {case.name: [one.loss, one.norm] for case, one in trained.items()}
    record = {"backend": arguments.backend, "worst": worst, "cases": names}
    parallel_tables.RECORD.write_text(json.dumps(record, indent=1) + "\n")
    parallel_tables.write()


def _maker(workspace: Path) -> Callable[..., RunConfig]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from conftest import tiny

    return partial(tiny, workspace)


if __name__ == "__main__":
    main()
