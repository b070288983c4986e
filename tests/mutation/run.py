"""Change comparisons one at a time and see whether the mirrored tests notice: `python -m tests.mutation.run`.

    < becomes <=    > becomes >=    == becomes !=    and the reverse of each

A change is killed when a test fails, the process crashes or the run does not end, and survives when all tests pass.
Those that no input can show stand in `targets.EQUIVALENT` with their reason: at most a tenth of an area. Of an area's
others nine in ten must be killed, or this fails. cosmic-ray makes the changes of Python, all in copies of the checkout:
nothing here is touched. The C file of a module's kernels is changed with the module.

    --only AREA      one of the areas of `targets.TARGETS`; may be repeated
    --workers N      copies worked on at once (default 2)
    --results FILE   write every change and its outcome as JSON
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators import comparison_operator_replacement as comparisons

from tests.mutation.targets import EQUIVALENT, TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]
CHANGES = ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")
C_CHANGES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
C_TOKEN = re.compile(
    r"/\*.*?\*/|//[^\n]*|^#(?!define)[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|<<=?|>>=?|->|[<>=!]=|[<>]",
    re.DOTALL | re.MULTILINE,
)
KILLED_AT_LEAST, EQUIVALENT_AT_MOST = 0.9, 0.1
#: A change may make a loop endless: it has the processor time of the unchanged tests, which compile the kernels, and
#: these seconds. What waits for ever without computing is ended too.
EXTRA_S, HANG_S = 20, 1800
#: At the first example that fails, a property has failed: it is not made smaller.
PROFILE = (
    *("-p", "_hypothesis_pytestplugin", "-p", "tests.mutation.first_failure"),
    *("--hypothesis-profile", "first-failure"),
)

PASSED, FAILED, ENDLESS = "passed", "failed", "endless"


@dataclass(frozen=True)
class Mutant:
    """One changed comparison."""

    area: str
    file: str
    line: int
    before: str
    after: str
    source: str
    tests: tuple[str, ...]

    @property
    def equivalent(self) -> str | None:
        """Why no input can show the change, where that is so."""
        return EQUIVALENT.get((self.file, self.after))


def mutants(area: str, target: Target) -> Iterator[Mutant]:
    """Every change of the comparisons of a file, and of the C file of its kernels."""
    kernels = f"{target.file.removesuffix('.py')}.c"
    for file, changes in ((target.file, _changes_of_python), (kernels, _changes_of_c)):
        if file == kernels and not (ROOT / file).exists():
            continue
        source = (ROOT / file).read_text(encoding="utf-8")
        lines = source.splitlines()
        for changed in changes(source):
            after = changed.splitlines()
            number = next(i for i, (old, new) in enumerate(zip(lines, after, strict=True)) if old != new)
            yield Mutant(area, file, number + 1, lines[number].strip(), after[number].strip(), changed, target.tests)


def _changes_of_python(source: str) -> Iterator[str]:
    for change in CHANGES:
        operator = getattr(comparisons, f"ReplaceComparisonOperator_{change}")()
        occurrence = 0
        while changed := mutate_code(source, operator, occurrence):
            occurrence += 1
            yield changed


def _changes_of_c(source: str) -> Iterator[str]:
    """Changes of comparisons in code: not in comments, strings, shifts, arrows and lines of the preprocessor."""
    for found in C_TOKEN.finditer(source):
        if found.group() in C_CHANGES:
            yield source[: found.start()] + C_CHANGES[found.group()] + source[found.end() :]


class Copies:
    """Copies of the checkout, one a thread, in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._of_thread = folder, threading.local()

    def mine(self) -> Path:
        """This thread's copy, made when first asked for."""
        if not hasattr(self._of_thread, "path"):
            command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
            listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            self._of_thread.path = copy = self.folder / threading.current_thread().name
            for name in filter(None, listed.stdout.split("\0")):
                if (ROOT / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, copy / name)
        return Path(self._of_thread.path)


def run_tests(copy: Path, tests: tuple[str, ...], limit_s: int) -> tuple[str, int]:
    """Return the result of the tests in a copy, `PASSED`, `FAILED` or `ENDLESS`, and the CPU seconds.

    A crash is a failure.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(copy / root) for root in ("platform", "registry", "assets", "jobs", "")),
        "PYTHONDONTWRITEBYTECODE": "",  # hundreds of starts read what the first has written
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    chosen = ["-m", "not exhaustive and not gpu"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", *chosen, "-p", "no:cacheprovider", *PROFILE]
    with tempfile.TemporaryFile() as told:  # a pipe would be held open by processes that the tests start
        run = subprocess.Popen(
            [*command, *tests], cwd=copy, env=environment, stdout=told, stderr=told, start_new_session=True
        )
        resource.prlimit(run.pid, resource.RLIMIT_CPU, (limit_s, limit_s + EXTRA_S))
        clock = threading.Timer(HANG_S, os.killpg, (run.pid, signal.SIGXCPU))
        clock.start()
        _, status, usage = os.wait4(run.pid, 0)
        clock.cancel()
        code = run.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(ProcessLookupError):  # what the tests have left behind
            os.killpg(run.pid, signal.SIGKILL)
        told.seek(0)
        if code > 2:  # 0 passed, 1 failed, 2 not even collected, below 0 ended by a signal
            raise RuntimeError(f"{' '.join(command)} ended with {code}\n{told.read().decode()[-2000:]}")
    seconds = int(usage.ru_utime + usage.ru_stime)
    return {0: PASSED, -signal.SIGXCPU: ENDLESS}.get(code, FAILED), seconds


def outcome_of(copies: Copies, mutant: Mutant, limit_s: int) -> str:
    """Return the result of the tests with the change."""
    copy = copies.mine()
    path = copy / mutant.file
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.source, encoding="utf-8")
    try:
        return run_tests(copy, mutant.tests, limit_s)[0]
    finally:
        path.write_text(original, encoding="utf-8")


def limits(copies: Copies, pool: ThreadPoolExecutor, every: list[Mutant]) -> dict[tuple[str, ...], int]:
    """By tests, the seconds of processor time after which a run of them is endless; from a run without any change.

    Raises:
        RuntimeError: they fail without any change.
    """

    def measured(tests: tuple[str, ...]) -> int:
        found, seconds = run_tests(copies.mine(), tests, HANG_S)
        if found != PASSED:
            raise RuntimeError(f"{', '.join(tests)} fail without any change: mend them first")
        return seconds + EXTRA_S

    listed = sorted({one.tests for one in every})
    return dict(zip(listed, pool.map(measured, listed), strict=True))


def main() -> int:
    """Run all changes and print the account; 1 where too few are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(TARGETS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    areas, begun = options.only or list(TARGETS), time.monotonic()
    every = [one for area in areas for target in TARGETS[area] for one in mutants(area, target)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies = Copies(Path(folder))
        limit = limits(copies, pool, every)
        outcomes = []
        for one, found in zip(every, pool.map(lambda m: outcome_of(copies, m, limit[m.tests]), every), strict=True):
            outcomes.append(found)
            word = "equivalent" if found == PASSED and one.equivalent else "SURVIVED" if found == PASSED else found
            print(f"{len(outcomes)}/{len(every)} {word:<10} {one.file}:{one.line}: {one.after}", flush=True)
    if options.results:
        facts = [{**asdict(one), "outcome": found} for one, found in zip(every, outcomes, strict=True)]
        kept = [{key: value for key, value in fact.items() if key not in ("source", "tests")} for fact in facts]
        options.results.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"{time.monotonic() - begun:.0f} s")
    return account(every, [found == PASSED for found in outcomes])


def account(every: list[Mutant], outcomes: list[bool]) -> int:
    """Print the shares by area; 1 where a bound is broken."""
    dead = 0
    for file, line in EQUIVALENT:
        changes = [one.after for one in every if one.file == file]
        if line not in changes and (changes or not (ROOT / file).exists()):
            dead += 1
            print(f"no such change any more: {file}: {line}; nearest: {difflib.get_close_matches(line, changes, n=1)}")
    wrong = [one for one, alive in zip(every, outcomes, strict=True) if one.equivalent and not alive]
    for one in wrong:
        print(f"called equivalent, and a test fails: {one.file}:{one.line}: {one.after}")
    counts: dict[str, Counter[str]] = {area: Counter() for area in dict.fromkeys(one.area for one in every)}
    for one, alive in zip(every, outcomes, strict=True):
        counts[one.area]["equivalent" if one.equivalent else "alive" if alive else "killed"] += 1
    fine = not wrong and not dead
    for area, count in counts.items():
        share = count["killed"] / max(1, count["killed"] + count["alive"])
        fine &= share >= KILLED_AT_LEAST and count["equivalent"] <= EQUIVALENT_AT_MOST * count.total()
        print(
            f"{area:<12} {count['killed']} killed, {count['alive']} alive ({share:.0%}), "
            f"{count['equivalent']} equivalent ({count['equivalent'] / count.total():.0%})"
        )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
