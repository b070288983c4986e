"""The question of a source's value from the command line, as the file of an experiment in the workspace.

    workspace/experiments/value-NAME/question.yaml

The file is like one that somebody writes: `plinth experiment run` and `show` take it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from plinth.corpus.sources.parameters import Bucket
from plinth.errors import MissingError, RequestError
from plinth.experiment.value.question import written
from plinth.storage.atomic import write_bytes

FILE = "question.yaml"
LONGEST = 24


def name_of(source: str) -> str:
    """Name of the experiment about a source: `value-forum` of `/data/forum.jsonl`."""
    stem = source.rstrip("/").rpartition("/")[2].partition(".")[0]
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "source"
    return f"value-{slug}"[:LONGEST].rstrip("-")


def path_of(workspace: Path, source: str) -> Path:
    """Where the file of the question lies."""
    return workspace / "experiments" / name_of(source) / FILE


def asked(workspace: Path, source: str) -> Path:
    """The file of a question that was put before.

    Raises:
        MissingError: there is none.
    """
    path = path_of(workspace, source)
    if not path.is_file():
        raise MissingError(
            f"nothing was trained to value {source}",
            found=f"no {path}",
            remedy=f"plinth corpus source value {source} --price PRICE --share SHARE --test FILE --train",
        )
    return path


def write(
    workspace: Path, source: str, bucket: Bucket, recipe: Path, test: str | None, given: Mapping[str, Any], seeds: int
) -> Path:
    """Write the file of a question; the same words give the same file.

    Args:
        source: as it was named.
        bucket: the source and the policy that judges it.
        test: JSONL of the test text.
        given: keys of `source` beside those of the bucket: `price`, `share`, and others that were said.

    Raises:
        RequestError: no test text, price or share was named, or the bucket has several sources.
    """
    lacking = [f"--{name}" for name in ("price", "share") if given.get(name) is None] + ([] if test else ["--test"])
    if lacking:
        raise RequestError(
            "a source cannot be valued by training without " + " and ".join(lacking),
            expected="its price, its share of the text of a run, and test text that no arm trains on",
            remedy=f"plinth corpus source value {source} --price 20000 --share 0.2 --test test.jsonl --train",
        )
    if len(bucket.sources) > 1:
        raise RequestError(
            f"{source} has {len(bucket.sources)} sources, and one is valued at a time",
            remedy="name the path of one of them, with --kind and --licence",
        )
    (own,) = bucket.sources
    described = written(own) | {"policy": bucket.policy}
    data = {
        "name": name_of(source),
        "question": f"Is {source} worth its price?",
        "recipe": str(recipe.absolute()),
        "test": {"test": {"path": _place(workspace, str(test))}},
        "source": described | {name: value for name, value in given.items() if value is not None},
        "seeds": list(range(1, seeds + 1)),
    }
    path = path_of(workspace, source)
    write_bytes(path, str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)).encode())
    return path


def _place(workspace: Path, test: str) -> str:
    """A file of here as it is; anything else is below `input/`."""
    return str(Path(test).absolute()) if "://" not in test and Path(test).is_file() else test
