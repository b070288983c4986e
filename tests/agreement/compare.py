"""Compare profiles with the projects they are named after, on real documents of this machine.

    python tests/agreement/compare.py gopher/dolma --python PEER/bin/python
    python tests/agreement/compare.py gopher/redpajama --peer CHECKOUT --python PEER/bin/python

`--python` is an interpreter that has the project's packages; ours need not have them. The result, with every
disagreement, goes to tests/benchmarks/results/agreement.json, one entry per profile; docs/profiles.md shows it.

| profile | checkout | packages |
|---|---|---|
| gopher/dolma, dolma/1.6, c4/dolma | none | dolma |
| gopher/redpajama | togethercomputer/RedPajama-Data | nltk, msgspec |
| refinedweb/dclm, c4/dclm, code/redpajama | mlfoundations/dclm | nltk, uniseg, fasttext-wheel, unidecode |
| c4/paper | tensorflow/datasets, or its c4_utils.py | none |
| gopher/white-space, fineweb/white-space, c4/white-space | none | datatrove, which ours has |

datatrove as released, with its own splitters, is `tests/benchmarks/bench_agreement.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.agreement.lines import tidy
from tests.agreement.profiles import real_documents, verdicts

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "agreement.json"
REQUIRED = 0.995


def theirs(name: str, texts: list[str], python: str, checkout: str, punkt: bool) -> list[tuple[str, str | None]]:
    """The project's verdicts, from its own process."""
    command = [python, str(HERE / "peer.py"), name, checkout, *(["--punkt"] if punkt else [])]
    given = "".join(json.dumps(text) + "\n" for text in texts)
    made = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True)
    found = [tuple(json.loads(line)) for line in made.stdout.splitlines()]
    if len(found) != len(texts):
        raise SystemExit(f"{len(texts)} texts, {len(found)} verdicts: the project's side broke off")
    return found


def compared(name: str, texts: list[str], other: list[tuple[str, str | None]]) -> dict[str, Any]:
    """Return counts, shares, and every disagreement, grouped by the two answers."""
    pairs = list(zip(texts, verdicts(name, texts), other, strict=True))
    apart = [(text, mine, its) for text, mine, its in pairs if (mine[0] == "keep") != (its[0] == "keep")]
    both_keep = [(mine, its) for _, mine, its in pairs if mine[0] == its[0] == "keep" and None not in (mine[1], its[1])]
    same_pages = sum(tidy(mine[1]) == tidy(its[1]) for mine, its in both_keep)
    return {
        "documents": len(texts),
        "megabytes": round(sum(len(text.encode()) for text in texts) / 1e6, 2),
        "dropped": dict(Counter(its[0] for _, _, its in pairs if its[0] != "keep").most_common()),
        "verdicts": 1 - len(apart) / len(texts),
        "reasons": sum(mine[0] == its[0] for _, mine, its in pairs) / len(texts),
        "pages": same_pages / len(both_keep) if both_keep else None,
        "pages_compared": len(both_keep),
        "apart": dict(Counter(f"ours {mine[0]}, theirs {its[0]}" for _, mine, its in apart)),
        "examples": [{"text": text[:200], "ours": mine[0], "theirs": its[0]} for text, mine, its in apart[:10]],
    }


def commit_of(checkout: str) -> str | None:
    """Return the commit of a checkout, or the content of a file COMMIT next to it."""
    note = Path(checkout).parent / f"{Path(checkout).name}.commit"
    if note.is_file():
        return note.read_text().strip()
    made = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return made.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("profile")
    parser.add_argument("--peer", default="", help="a checkout of the project")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the project's packages")
    parser.add_argument("--version", default="", help="of the project, where there is no checkout")
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--characters", type=int, default=20_000)
    parser.add_argument("--punkt", action="store_true", help="leave the project its own sentence splitter")
    options = parser.parse_args()
    texts = real_documents(options.documents, options.characters)
    other = theirs(options.profile, texts, options.python, options.peer, options.punkt)
    entry = compared(options.profile, texts, other)
    entry["peer"] = options.version or (commit_of(options.peer) if options.peer else None)
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    known[options.profile + (" with Punkt" if options.punkt else "")] = entry
    RESULTS.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")
    print(options.profile, json.dumps({key: value for key, value in entry.items() if key != "examples"}))
    if entry["verdicts"] < REQUIRED:
        raise SystemExit(f"below {REQUIRED:.1%}")


if __name__ == "__main__":
    main()
