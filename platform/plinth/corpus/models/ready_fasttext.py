"""A ready fastText model: one file, `.bin` or `.ftz`, under any name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth.errors import IntegrityError
from plinth_text.fasttext import model_file
from plinth_text.fasttext.model_file import FastTextModel


def read(files: Mapping[str, Path], asset: str) -> FastTextModel:
    """The model of a list's files, mapped.

    Raises:
        IntegrityError: they are several.
        ModelFileError: the file is no supervised fastText model.
    """
    if len(files) != 1:
        raise IntegrityError(
            f"{asset} cannot be used",
            found=", ".join(sorted(files)) or "no file",
            expected="one file: a fastText model",
            remedy="name the file itself in `corpus.lists`, not its folder",
        )
    return model_file.read(next(iter(files.values())))


def described(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
    """Facts of the model for the catalogue.

    Raises:
        IntegrityError, ModelFileError: as `read`.
    """
    model = read(files, asset)
    labels = ", ".join(model.labels[:20]) + (", …" if len(model.labels) > 20 else "")
    return {"labels": labels, "words": model.nwords, "dim": model.dim, "word_ngrams": model.word_ngrams}
