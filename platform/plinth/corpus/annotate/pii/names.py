"""Names and addresses of people, by a spaCy pipeline of the user (the extra `ner`).

The pipeline is a list of the recipe (`corpus.lists.NAME`: the folder that `nlp.to_disk` writes), so its files are part
of the identity of what it finds. Nothing is downloaded.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from plinth.errors import MissingError, StageError

#: Characters that a pipeline is given at once; spaCy itself refuses more than a million.
PIECE = 50_000


def load(name: str, files: Mapping[str, Path]) -> Any:
    """The pipeline of a list, made whole again from its parts.

    Raises:
        MissingError: spaCy is not installed.
        StageError: the files are no pipeline that this spaCy can load.
    """
    try:
        spacy = import_module("spacy")
    except ImportError as error:
        remedy = "pip install 'plinth[ner]', or take `ner` out of the parameters of pii"
        raise MissingError(f"pii.ner reads the pipeline {name}, but spaCy is not installed", remedy=remedy) from error
    with tempfile.TemporaryDirectory(prefix="plinth-ner-") as folder:
        for part, path in files.items():
            target = Path(folder, part)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        configs = sorted(Path(folder).rglob("config.cfg"), key=lambda path: len(path.parts))
        try:
            return spacy.load(configs[0].parent)
        except Exception as error:  # spaCy raises whatever its components raise
            raise StageError(
                f"list {name} is no spaCy pipeline that can be loaded",
                found=f"{len(files)} files; {type(error).__name__}: {error}",
                expected="the folder that nlp.to_disk() writes, of a version that fits the installed spaCy",
            ) from error


def entities(nlp: Any, text: str, labels: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    """Code points from and to, and kind, of the entities whose label is named in `labels`."""
    for start, piece in _pieces(text):
        for entity in nlp(piece).ents:
            if entity.label_ in labels and entity.end_char > entity.start_char:
                yield start + entity.start_char, start + entity.end_char, labels[entity.label_]


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    while start < len(text):
        end = start + PIECE
        if end < len(text):
            end = (text.rfind("\n", start + 1, end) + 1) or (text.rfind(" ", start + 1, end) + 1) or end
        yield start, text[start:end]
        start = end
