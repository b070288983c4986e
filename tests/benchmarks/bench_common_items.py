"""Number of real documents removed by protected items, with and without the rule for common n-grams.

    python tests/benchmarks/bench_common_items.py FOLDER [FOLDER ...] [--documents 8000]

The training text consists of manual pages, documentation and source files under the folders (`/usr/share/man
/usr/share/doc`, a folder of installed packages), exact and near duplicates removed. Items are 33 stretches of 60 words,
each from the middle of one of the documents, and 5 stretches of templated text: the notices of the Apache, MIT, BSD and
GPL licenses, and of the Free Software Foundation's manual pages, as files of the same folders have them. Writes
tests/benchmarks/results/common_items.json.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.protected import comparison, protected
from plinth.corpus.protected.parameters import Protected, ProtectedSet
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from tests.plinth.corpus.conftest import Corpus, Doc

SUFFIXES = (".py", ".md", ".rst", ".txt", ".html", ".c", ".h", ".gz", "copyright", "README", "METADATA", "LICENSE")
ITEMS, ITEM_WORDS, PART = 33, 60, 1000
#: Phrases that the templated items begin with.
TEMPLATES = {
    "apache": "licensed under the apache license version 2 0",
    "mit": "permission is hereby granted free of charge to any person",
    "bsd": "redistribution and use in source and binary forms with or without",
    "gpl": "this program is free software you can redistribute it and or modify",
    "manual": "this is free software you are free to change and redistribute it",
}
TARGET = Path(__file__).parent / "results" / "common_items.json"


def documents(folders: Sequence[str], wanted: int) -> Iterator[tuple[str, str]]:
    """Texts by path, drawn by hash of the path."""
    paths = (path for folder in folders for path in Path(folder).rglob("*"))
    paths = (path for path in paths if path.name.endswith(SUFFIXES) and path.is_file() and not path.is_symlink())
    found = 0
    for path in sorted(paths, key=lambda path: hashlib.sha256(str(path).encode()).digest()):
        data = path.read_bytes()[: 2**20]
        try:
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        except (OSError, EOFError, ValueError):
            continue
        if "/man/" in str(path):
            text = re.sub(r"\\f.|\\&", "", "\n".join(line.lstrip(".") for line in text.splitlines())).replace(
                "\\-", "-"
            )
        if len(text.split()) >= 50:
            yield str(path), text
            found += 1
        if found == wanted:
            return


def items(texts: Sequence[str]) -> dict[str, str]:
    """Stretches of the documents, and templated ones."""
    picks = random.Random(1)
    long = [text for text in texts if len(text.split()) > 400]
    found = {}
    for number, text in enumerate(picks.sample(long, ITEMS)):
        words = text.split()
        at = picks.randrange(100, len(words) - 100)
        found[f"own{number}"] = " ".join(words[at : at + ITEM_WORDS])
    for name, phrase in TEMPLATES.items():
        pattern = re.compile(r"\W+".join(phrase.split()), re.IGNORECASE)
        for text in texts:
            if match := pattern.search(text):
                found[name] = " ".join(text[match.start() :].split()[:ITEM_WORDS])
                break
    return found


def compare(ctx: Context, corpus: Corpus, given: dict[str, str], limit: int | None) -> dict[str, Any]:
    path = ctx.workspace.input / "items.jsonl"
    path.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in given.items()))
    read = {"items": protected.read_set(ctx, "items", ProtectedSet(path=path.name))}
    params = Protected(sets={"items": ProtectedSet(path=path.name)}, boilerplate_documents=limit)
    made = protected.run(ctx, params, corpus.documents, corpus.near, corpus.holdout, read)
    (part,) = made.named(comparison.FILE)
    rows = {row["item"]: row for row in read_table(ctx.store, part).to_pylist()}
    return {
        "documents": made.stats["considered"],
        "leaked": made.stats["leaked"],
        "downweighted": made.stats["downweighted"],
        "items": {status: made.stats["sets"]["items"][status] for status in comparison.STATUSES},
        "templated": {name: {"status": rows[name]["status"], "documents": rows[name]["leaked"]} for name in TEMPLATES},
        "largest": max(row["leaked"] for name, row in rows.items() if name not in TEMPLATES),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--documents", type=int, default=8000)
    given = parser.parse_args()
    texts = list(documents(given.folders, given.documents))
    with tempfile.TemporaryDirectory() as folder:
        ctx = Context(Workspace(Path(folder)).ensure())
        docs = [Doc(text, name=path) for path, text in texts]
        corpus = Corpus(ctx, {"real": [docs[at : at + PART] for at in range(0, len(docs), PART)]})
        corpus.through_holdout()
        wanted = items([text for _, text in texts])
        found = {str(limit): compare(ctx, corpus, wanted, limit) for limit in (10, None)}
    print(json.dumps(found, indent=2))
    TARGET.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
