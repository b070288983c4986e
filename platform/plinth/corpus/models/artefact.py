"""A trained classifier as files: `model.json`, `table.npy`, and for the second stage `nodes.npy`, `starts.npy`.

Plain arrays and JSON: the same model has the same bytes, and reading one runs no code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.corpus.models.classify.probabilities import Curve
from plinth.corpus.models.classify.trees import NODE, Forest, problem
from plinth.errors import IntegrityError
from plinth.records import Frozen, Part
from plinth.storage.store import Store
from plinth_text import scoring
from plinth_text.arrays import F32, F64

#: Raised when files of an older version would be read wrongly, or features mean something else.
FORMAT = "plinth-linear/1"
HEAD, TABLE, NODES, STARTS = "model.json", "table.npy", "nodes.npy", "starts.npy"


class Second(Frozen):
    """The second stage: what it was fitted on and how its margins become probabilities."""

    features: tuple[str, ...]
    base: float
    curve: Curve


class Head(Frozen):
    """Everything about a model but its arrays."""

    format: str
    kind: str
    labels: tuple[str, ...] = Field(min_length=1)
    bits: int = Field(ge=8, le=26)
    window: int = Field(ge=0)
    bias: tuple[float, ...]
    curves: tuple[Curve, ...]
    band: tuple[float, float]
    second: Second | None = None
    lexicon: str | None = None


@dataclass(frozen=True)
class ClassifierModel:
    """A classifier ready for use."""

    head: Head
    table: F32
    forest: Forest | None = None

    def probabilities(self, texts: pa.Array) -> tuple[F64, F64]:
        """Calibrated probabilities and raw margins of the first stage, [documents, labels] each."""
        margins = scoring.margins(texts, self.table, np.array(self.head.bias, np.float32), self.head.window)
        columns = [curve(margins[:, k]) for k, curve in enumerate(self.head.curves)]
        return np.stack(columns, axis=1), margins

    def second(self, margins: F64, look: F32) -> F64:
        """Probabilities of the second stage, [documents].

        Args:
            margins: of the first stage, [documents].
            look: of the texts, as `examples.second_look` gives it.

        Raises:
            ValueError: the model has no second stage, or not with so many features.
        """
        if self.forest is None or self.head.second is None:
            raise ValueError("the model has no second stage")
        given = second_features(margins, look)
        if given.shape[1] != len(self.head.second.features):
            raise ValueError(f"{given.shape[1]} features, expected {len(self.head.second.features)}")
        return self.head.second.curve(self.forest.margins(given))


def second_features(margins: F64, look: F32) -> F32:
    """Features of the second stage, [documents, 1 + N]: the first stage's margin and the text's look."""
    return np.concatenate([margins.astype(np.float32)[:, None], look], axis=1)


def second_names(more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of those features; `more` are those of a lexicon."""
    return ("margin", *scoring.NAMES, *more)


def write(store: Store, model: ClassifierModel) -> tuple[Part, ...]:
    """The files of a model as parts."""
    arrays: dict[str, npt.NDArray[Any]] = {TABLE: model.table}
    if model.forest is not None:
        arrays |= {NODES: model.forest.nodes, STARTS: model.forest.starts}
    head = Part(name=HEAD, blob=store.put_bytes(fingerprint.canonical(model.head)))
    return (head, *(Part(name=name, blob=store.put_bytes(_npy(array))) for name, array in arrays.items()))


def read(files: Mapping[str, Path], key: str, kind: str) -> ClassifierModel:
    """A model from its files.

    Args:
        key: of the asset, for errors: `models/NAME`.
        kind: of model that is wanted.

    Raises:
        IntegrityError: another version or kind wrote it, a file is missing, or the files do not fit together.
    """
    try:
        raw = json.loads(files[HEAD].read_bytes())
        if not isinstance(raw, dict) or raw.get("format") != FORMAT or raw.get("kind") != kind:
            found = f"{raw.get('kind')}, {raw.get('format')}" if isinstance(raw, dict) else type(raw).__name__
            raise _refused(key, found, f"{kind}, {FORMAT}")
        head = Head.model_validate_json(files[HEAD].read_bytes())
        table = np.load(files[TABLE], allow_pickle=False)
        forest = _forest(files, head)
    except KeyError as error:
        raise _refused(key, f"no file {error.args[0]}", f"{HEAD}, {TABLE} and what they name") from error
    except (ValueError, OSError, EOFError, ValidationError) as error:
        raise _refused(key, error, f"a model of kind {kind}, {FORMAT}") from error
    _require(key, head, table, forest)
    return ClassifierModel(head, table, forest)


def _forest(files: Mapping[str, Path], head: Head) -> Forest | None:
    if head.second is None:
        return None
    nodes, starts = (np.load(files[name], allow_pickle=False) for name in (NODES, STARTS))
    return Forest(nodes, starts, head.second.base)


def _require(key: str, head: Head, table: npt.NDArray[Any], forest: Forest | None) -> None:
    outputs = len(head.labels)
    shape = (1 << head.bits, outputs)
    if table.dtype != np.float32 or table.shape != shape or not np.isfinite(table).all():
        raise _refused(key, f"a table {table.shape} of {table.dtype}", f"finite float32 {shape}")
    if len(head.bias) != outputs or len(head.curves) != outputs:
        raise _refused(key, f"{len(head.bias)} biases, {len(head.curves)} curves", f"{outputs} of each")
    if forest is not None and head.second is not None:
        fault = "nodes of another form" if forest.nodes.dtype != NODE else problem(forest, len(head.second.features))
        if fault:
            raise _refused(key, fault, "trees that can be walked")


def _refused(key: str, found: object, expected: object) -> IntegrityError:
    return IntegrityError(
        f"{key} cannot be used", found=found, expected=expected, remedy=f"train it again: `plinth run --select {key}`"
    )


def _npy(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
