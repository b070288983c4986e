"""Change comparisons one at a time and see whether the mirrored tests notice: `python -m tests.mutation.run`.

    < becomes <=    > becomes >=    == becomes !=    and the reverse of each

A change is killed when a test fails, and survives when all pass. Those that no input can show stand in
`targets.EQUIVALENT` with their reason: at most a tenth. Of the others nine in ten must be killed, or this fails.
Changes are made by cosmic-ray, in copies of the checkout; nothing here is touched.

    --only AREA      one of the areas of `targets.TARGETS`; may be repeated
    --workers N      copies worked on at once (default 2)
    --results FILE   write every change and its outcome as JSON
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
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
KILLED_AT_LEAST, EQUIVALENT_AT_MOST = 0.9, 0.1
#: A change may make a loop endless; the slowest of the mirrored tests takes a small part of this.
LIMIT_S = 600


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
    """Every change of the comparisons of a file."""
    source = (ROOT / target.file).read_text(encoding="utf-8")
    lines = source.splitlines()
    for change in CHANGES:
        operator = getattr(comparisons, f"ReplaceComparisonOperator_{change}")()
        occurrence = 0
        while changed := mutate_code(source, operator, occurrence):
            occurrence += 1
            after = changed.splitlines()
            number = next(i for i, (old, new) in enumerate(zip(lines, after, strict=True)) if old != new)
            yield Mutant(
                area, target.file, number + 1, lines[number].strip(), after[number].strip(), changed, target.tests
            )


class Copies:
    """Copies of the checkout, one a thread, in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._of_thread = folder, threading.local()

    def mine(self) -> Path:
        """This thread's copy, made when first asked for."""
        if not hasattr(self._of_thread, "path"):
            listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
            self._of_thread.path = copy = self.folder / threading.current_thread().name
            for name in filter(None, listed.stdout.split("\0")):
                if (ROOT / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, copy / name)
        return Path(self._of_thread.path)


def passes(copy: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass in a copy; a run that does not end has failed."""
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'platform'}{os.pathsep}{copy}"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not exhaustive", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2):  # passed, failed, not even collected
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout.decode()[-2000:]}")
    return done.returncode == 0


def survives(copies: Copies, mutant: Mutant) -> bool:
    """Whether all tests pass with the change."""
    copy = copies.mine()
    path = copy / mutant.file
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.source, encoding="utf-8")
    try:
        return passes(copy, mutant.tests)
    finally:
        path.write_text(original, encoding="utf-8")


def main() -> int:
    """Run all changes and print the account; 1 where too few are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(TARGETS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    areas = options.only or list(TARGETS)
    every = [one for area in areas for target in TARGETS[area] for one in mutants(area, target)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies = Copies(Path(folder))
        unchanged = sorted({one.tests for one in every})
        if not all(pool.map(lambda tests: passes(copies.mine(), tests), unchanged)):
            print("the tests fail without any change: mend them first", file=sys.stderr)
            return 1
        outcomes = []
        for number, alive in enumerate(pool.map(lambda one: survives(copies, one), every), 1):
            one = every[number - 1]
            outcomes.append(alive)
            word = "equivalent" if alive and one.equivalent else "SURVIVED" if alive else "killed"
            print(f"{number}/{len(every)} {word:<10} {one.file}:{one.line}: {one.after}", flush=True)
    if options.results:
        facts = [{**asdict(one), "survived": alive} for one, alive in zip(every, outcomes, strict=True)]
        kept = [{key: value for key, value in fact.items() if key not in ("source", "tests")} for fact in facts]
        options.results.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return account(every, outcomes)


def account(every: list[Mutant], outcomes: list[bool]) -> int:
    """Print the shares by area; 1 where a bound is broken."""
    for file, line in EQUIVALENT:
        changes = [one.after for one in every if one.file == file]
        if changes and line not in changes:
            print(f"no such change any more: {file}: {line}; nearest: {difflib.get_close_matches(line, changes, n=1)}")
    wrong = [one for one, alive in zip(every, outcomes, strict=True) if one.equivalent and not alive]
    for one in wrong:
        print(f"called equivalent, and a test fails: {one.file}:{one.line}: {one.after}")
    counts: dict[str, Counter[str]] = {area: Counter() for area in dict.fromkeys(one.area for one in every)}
    for one, alive in zip(every, outcomes, strict=True):
        counts[one.area]["equivalent" if one.equivalent else "alive" if alive else "killed"] += 1
    for area, count in counts.items():
        print(f"{area:<12} {count['killed']} killed, {count['alive']} alive, {count['equivalent']} equivalent")
    total = sum(counts.values(), Counter[str]())
    share = total["killed"] / max(1, total["killed"] + total["alive"])
    print(f"{share:.0%} of {total['killed'] + total['alive']} changes killed; {total['equivalent']} change nothing")
    fine = share >= KILLED_AT_LEAST and total["equivalent"] <= EQUIVALENT_AT_MOST * len(every) and not wrong
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
