"""An n-gram model as files (JSON and plain arrays), and as ARPA, which other tools read."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth import fingerprint
from plinth.corpus.models.ngram_counts import RESERVED
from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.store import Store
from plinth_text import scoring
from plinth_text.arrays import F32, F64, I64, U16, U64
from plinth_text.scoring import BEGIN

#: Raised when files of an older version would be read wrongly, or tokens are cut in another way.
FORMAT = "plinth-ngram/1"
HEAD, WORDS = "model.json", "words.npy"
NAMES = ("<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class NgramModel:
    """A model ready for use.

    Args:
        head: everything but arrays: order, spelling of the words by number, perplexity bands, measures.
        words: [vocabulary - 3] hashes of the words, by number from 3.
        keys: by order from 1, keys of its n-grams.
        values: by order from 1, [n, 2] log10 probability and log10 back-off.
    """

    head: Mapping[str, Any]
    words: U64
    keys: tuple[U64, ...]
    values: tuple[F32, ...]

    @cached_property
    def _tables(self) -> tuple[tuple[U64, U16], scoring.NGramTables]:
        numbers = np.arange(RESERVED, RESERVED + self.words.size, dtype=np.uint16)
        vocabulary = scoring.vocabulary_table(self.words, numbers)
        return vocabulary, scoring.NGramTables(list(self.keys[1:]), list(self.values[1:]))

    def score(self, texts: pa.Array) -> tuple[F64, I64]:
        """log10 probability of each text, and counts [documents, 3]: tokens, sentences, unknown tokens."""
        (table, numbers), tables = self._tables
        hashes, _, offsets = scoring.tokens(texts)
        return scoring.score(hashes, offsets, table, numbers, self.values[0], tables)

    def perplexity(self, texts: pa.Array) -> tuple[F64, I64]:
        """Perplexity per token of each text, sentence ends counted, NaN for one without tokens; and the counts."""
        total, counts = self.score(texts)
        predicted = counts[:, 0] + counts[:, 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.power(10.0, -total / predicted), counts


def write(store: Store, model: NgramModel) -> tuple[Part, ...]:
    """The files of a model as parts."""
    files: dict[str, bytes] = {HEAD: fingerprint.canonical(dict(model.head)), WORDS: _npy(model.words)}
    for order, (keys, values) in enumerate(zip(model.keys, model.values, strict=True), start=1):
        files |= {f"keys-{order}.npy": _npy(keys), f"values-{order}.npy": _npy(values)}
    return tuple(Part(name=name, blob=store.put_bytes(data)) for name, data in files.items())


def read(files: Mapping[str, Path], key: str) -> NgramModel:
    """A model from its files.

    Args:
        key: of the asset, for errors: `models/NAME`.

    Raises:
        IntegrityError: another version wrote it, a file is missing, or the files do not fit together.
    """
    try:
        head = json.loads(files[HEAD].read_bytes())
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise ValueError(f"format {head.get('format') if isinstance(head, dict) else type(head).__name__}")
        orders = range(1, int(head["order"]) + 1)
        arrays = {name: np.load(files[name], allow_pickle=False) for name in [WORDS, *_arrays(orders)]}
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise _refused(key, error) from error
    keys, values = (tuple(arrays[f"{what}-{n}.npy"] for n in orders) for what in ("keys", "values"))
    _require(key, head, arrays[WORDS], keys, values)
    return NgramModel(head, arrays[WORDS], keys, values)


def arpa(model: NgramModel) -> Iterator[str]:
    """The model in ARPA form, line by line. `<s>` has probability one, as lmplz writes it: nothing predicts it."""
    yield "\\data\\"
    for order, keys in enumerate(model.keys, start=1):
        yield f"ngram {order}={keys.size}"
    names = [*NAMES, *model.head["words"]]
    for order, (keys, values) in enumerate(zip(model.keys, model.values, strict=True), start=1):
        yield ""
        yield f"\\{order}-grams:"
        last = order == len(model.keys)
        for key, (logp, backoff) in zip(keys.tolist(), values.tolist(), strict=True):
            words = " ".join(names[(key >> (16 * k)) & 0xFFFF] for k in range(order))
            shown = 0.0 if order == 1 and key == BEGIN else logp
            yield f"{shown:.7g}\t{words}" if last else f"{shown:.7g}\t{words}\t{backoff:.7g}"
    yield ""
    yield "\\end\\"


def _arrays(orders: Sequence[int]) -> list[str]:
    return [f"{what}-{n}.npy" for n in orders for what in ("keys", "values")]


def _require(
    key: str, head: Mapping[str, Any], words: npt.NDArray[Any], keys: tuple[Any, ...], values: tuple[Any, ...]
) -> None:
    fits = (
        len(keys) <= scoring.MAX_ORDER
        and words.dtype == np.uint64
        and words.size == len(head.get("words", ()))
        and keys[0].size == words.size + RESERVED
    )
    for own, pair in zip(keys, values, strict=True):
        fits = fits and own.dtype == np.uint64 and pair.dtype == np.float32 and pair.shape == (own.size, 2)
        fits = fits and bool(np.isfinite(pair).all())
    if not fits:
        raise _refused(key, "arrays that do not fit together")


def _refused(key: str, found: object) -> IntegrityError:
    return IntegrityError(
        f"{key} cannot be used",
        found=found,
        expected=f"an n-gram model, {FORMAT}",
        remedy=f"train it again: `plinth run --select {key}`",
    )


def _npy(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
