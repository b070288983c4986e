"""Check the English that people read: docstrings, comments, messages, public names, docs and pages.

    python -m tests.words.check [PATH ...]

`words.txt` lists the words and phrases to replace, with their exceptions. A docstring, a description or the help of an
option must not begin with a word of `OPENING`. Prints `file:line: "foretell": write "predict"` for each hit and a count
per rule; exits with 1 if there are hits.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.words import masks

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("words.txt")
DEFAULT = (".", ":!tests")
OPENING = re.compile(r"\W*(How|Of|So|What|Whether|Who|Whose)\b")
WORD = re.compile(r"(?<![\w./-])[A-Za-z][A-Za-z'-]*")
END = r"(?![\w-]|[.(=:/]\w)"  # neither a path nor code follows
CONTEXT = 60  # characters on either side in which `keep` looks


class Rule(NamedTuple):
    """A word or phrase to replace; `label` is its line in the list, `head` its first word."""

    label: str
    head: re.Pattern[str]
    whole: re.Pattern[str]
    write: str
    in_names: bool
    exceptions: dict[str, list[str]]  # by `keep`, `in`, `only`: regexes or globs

    def holds(self, name: str, mask: str, found: re.Match[str]) -> bool:
        """True if a match is not an exception."""
        only, never = self.exceptions["only"], self.exceptions["in"]
        if (only and not any(fnmatch(name, glob) for glob in only)) or any(fnmatch(name, glob) for glob in never):
            return False
        begin, end = max(0, found.start() - CONTEXT), found.end() + CONTEXT
        right = (kept.span() for keep in self.exceptions["keep"] for kept in pattern(keep).finditer(mask[begin:end]))
        return not any(first < found.end() - begin and found.start() - begin < last for first, last in right)


@functools.cache
def pattern(phrase: str) -> re.Pattern[str]:
    """Return the regex of a phrase: whole words, any white space."""
    return re.compile(r"\b" * phrase[:1].isalpha() + phrase.replace(" ", r"\s+") + END, re.IGNORECASE)


def parse(text: str) -> tuple[list[Rule], list[str]]:
    """Return the rules of a list, whose head explains its form, and the globs of files with data for messages."""
    rules, data, in_names = list[Rule](), list[str](), True
    for line in text.splitlines():
        if line.startswith("=="):
            in_names = "names" in line
        elif line.startswith(("    ", "data ")):
            kind, _, rest = line.strip().partition(" ")
            value, _, reason = rest.rpartition(": ")
            if kind not in ("keep", "in", "only", "data") or not value or not reason:
                raise ValueError(f"{line!r}: expected keep, in, only or data, a pattern, a colon, a reason")
            (data if kind == "data" else rules[-1].exceptions[kind]).append(value)
        elif line and not line.startswith("#"):
            phrase, _, write = line.partition(" -> ")
            head = pattern(phrase.partition(" ")[0])
            rules.append(Rule(phrase, head, pattern(phrase), write, in_names, {"keep": [], "in": [], "only": []}))
    return rules, data


RULES, DATA = parse(LIST.read_text())


@functools.cache
def starting(word: str) -> list[Rule]:
    """Return the rules that begin with a word."""
    return [rule for rule in RULES if rule.head.fullmatch(word)]


def hits(name: str, source: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield line, words, replacement and rule of every place to change in a file."""
    if name.endswith(".py"):
        text, names, openings = masks.python(source, not any(fnmatch(name, glob) for glob in DATA))
    else:
        text, names, openings = masks.prose(Path(name).suffix, source), "", []
    for found in filter(None, (OPENING.match(text, begin) for begin in openings)):
        line = source.count("\n", 0, found.start(1)) + 1
        yield line, f"{found[1]} …", "subject, verb, object", f"begins with {found[1]}"
    for mask in (text, names):
        for word in WORD.finditer(mask):
            # a word that begins a line and is explained there is an argument or a module
            first = not mask[mask.rfind("\n", 0, word.start()) + 1 : word.start()].strip()
            entry = first and mask.startswith((":", "  "), word.end())
            for rule in starting(word[0]):
                found = rule.whole.match(mask, word.start())
                if found and (rule.in_names or not (entry or mask is names)) and rule.holds(name, mask, found):
                    line = source.count("\n", 0, found.start()) + 1
                    yield line, " ".join(found[0].split()), found.expand(rule.write), rule.label


def main(*paths: str) -> int:
    """Print all hits in the tracked files below `paths`, by default all but the tests, and a count per rule."""
    command = ["git", "ls-files", "-z", *(paths or DEFAULT)]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    count = Counter[str]()
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in masks.SUFFIXES and path.name != "LICENSE" and path.is_file():
            for line, found, write, rule in hits(name, path.read_text()):
                print(f'{name}:{line}: "{found}": write "{write}"')
                count[rule] += 1
    for rule, number in count.most_common():
        print(f"{number:6} {rule}", file=sys.stderr)
    print(f"{count.total():6} in all", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
