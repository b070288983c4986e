"""Train cases of the matrix beside one plain process.

    python tests/plinth/training/parallel/matrix_train.py [--every] [--backend inductor]

trains cases that have every triple of values that is not refused, on two, four and eight ranks (`--every`: besides,
every case of two ranks, which takes hours), writes how far each was from one process into `matrix.json` and the tables
of docs/parallel.md. To be run when what is refused changes; a test says so.
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
import matrix
import matrix_tables
import together
from together import Difference

from plinth.training.config import RunConfig
from tests.ranks import run_ranks

#: Cases that one set of processes trains in turn.
TOGETHER = 25


def train(
    cases: Sequence[matrix.Case], make: Callable[..., RunConfig], backend: str
) -> Iterator[tuple[matrix.Case, Difference]]:
    """Each case, and how far it is from one plain process; `backend` as in `together.train_all`."""
    plain: dict[tuple[str, object], together.Trained] = {}
    for ranks, some in groupby(sorted(cases, key=lambda case: case.ranks), key=lambda case: case.ranks):
        alike = list(some)
        for first in range(0, len(alike), TOGETHER):
            configs = {case: make(**case.fields()) for case in alike[first : first + TOGETHER]}
            named = {case.name: config for case, config in configs.items()}
            answers = run_ranks(ranks, together.train_all, named, True, backend, timeout_s=together.LONG_S)
            for case, config in configs.items():
                what = case.schedule, case.model
                if what not in plain:
                    plain[what] = together.plain_run(config)
                yield case, together.difference(config, answers, case.name, plain[what])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--backend", default="inductor", help="of torch.compile; as in `together.train_all`")
    asked = parser.parse_args()
    every = [case for case in matrix.feasible() if case.ranks == 2] if asked.every else []
    cases, begun = matrix.cover(list(dict.fromkeys([*matrix.cover((), 2), *every])), 3), time.monotonic()
    trained: dict[matrix.Case, Difference] = {}
    with tempfile.TemporaryDirectory() as workspace:
        for case, difference in train(cases, _maker(Path(workspace)), asked.backend):
            trained[case] = difference
            wrong = difference.beyond(case.precision) or f"alike: {difference.loss:.2g}, {difference.norm:.2g}"
            print(f"{len(trained)} of {len(cases)}, {time.monotonic() - begun:.0f} s: {case.name}: {wrong}", flush=True)
    if any(difference.beyond(case.precision) for case, difference in trained.items()):
        sys.exit("not all are alike: nothing was written")
    worst = {}
    for precision in matrix.AXES["precision"]:
        own = [difference for case, difference in trained.items() if case.precision == precision]
        worst[precision] = [len(own), max(one.loss for one in own), max(one.norm for one in own)]
    names = {case.name: [one.loss, one.norm] for case, one in trained.items()}
    record = {"backend": asked.backend, "worst": worst, "cases": names}
    matrix_tables.RECORD.write_text(json.dumps(record, indent=1) + "\n")
    matrix_tables.write()


def _maker(workspace: Path) -> Callable[..., RunConfig]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from conftest import tiny

    return partial(tiny, workspace)


if __name__ == "__main__":
    main()
