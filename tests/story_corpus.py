"""The tiny corpus and a bucket that spoils a run: what docs/training.md walks through, with tests/story.yaml.

    tiny/                as tests/tiny_corpus.py writes it
    story/dump.jsonl     a scrape that went wrong: letters without order

`python -m tests.story_corpus DIR` writes them below DIR.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tests import tiny_corpus

DUMPS = 40


def write(folder: Path) -> Path:
    """Write all sources below `folder` (a workspace's `input/`); returns it."""
    tiny_corpus.write(folder)
    target = folder / "story"
    target.mkdir(parents=True, exist_ok=True)
    chooser = random.Random(4)
    lines = [{"text": _noise(chooser), "url": f"https://scraped.example/{number}"} for number in range(DUMPS)]
    (target / "dump.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def _noise(chooser: random.Random) -> str:
    """Words without any order, of letters that follow no letter in the other buckets."""
    return " ".join("".join(chooser.choice("ZXQJKVWY") for _ in range(chooser.randint(2, 4))) for _ in range(200))


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
