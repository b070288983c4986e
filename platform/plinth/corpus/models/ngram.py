"""Modified Kneser–Ney n-gram model of reference buckets, its files, and perplexity bands for other text.

CCNet (Wenzek et al. 2020) trains an n-gram model on clean reference text. CCNet then divides a corpus into head, middle
and tail at the 30th and 60th percentiles of perplexity. This module measures the percentiles on documents of the
buckets in `bands_from`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.models import ModelTrainer
from plinth.corpus.models.ngram_counts import RESERVED, VERSION, HashRange, estimate, grams, sample, sampled, vocabulary
from plinth.errors import IntegrityError, StageError
from plinth.records import Frozen, Manifest, Part, Step, internal
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth_text import scoring
from plinth_text.arrays import F32, F64, I64, U16, U64
from plinth_text.libm import power
from plinth_text.scoring import BEGIN

# An n-gram model as files (JSON and plain arrays), and as ARPA, which other tools read.

#: Raised when files of an older version would be read wrongly, or tokens are cut in another way.
FORMAT = "plinth-ngram/1"
HEAD, WORDS = "model.json", "words.npy"
NAMES = ("<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class NgramModel:
    """Loaded n-gram model.

    Args:
        head: all data except arrays: order, words in the order of their numbers, perplexity bands, metrics.
        words: [vocabulary - 3] hashes of the words. The first word has number 3.
        keys: keys of the n-grams, by order from 1.
        values: [n, 2] log10 probability and log10 back-off, by order from 1.
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
        """Return the log10 probability of each text, and counts [documents, 3]: tokens, sentences, unknown tokens."""
        (table, numbers), tables = self._tables
        hashes, _, offsets = scoring.tokens(texts)
        return scoring.score(hashes, offsets, table, numbers, self.values[0], tables)

    def perplexity(self, texts: pa.Array) -> tuple[F64, I64]:
        """Return the perplexity per token of each text, and the counts from `score`. A sentence end is one token. The
        perplexity of a text without tokens is NaN."""
        total, counts = self.score(texts)
        predicted = counts[:, 0] + counts[:, 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            return power(10.0, -total / predicted), counts


def write(store: Store, model: NgramModel) -> tuple[Part, ...]:
    """Write the files of an n-gram model as parts."""
    files: dict[str, bytes] = {HEAD: fingerprint.canonical(dict(model.head)), WORDS: _npy(model.words)}
    for order, (keys, values) in enumerate(zip(model.keys, model.values, strict=True), start=1):
        files |= {f"keys-{order}.npy": _npy(keys), f"values-{order}.npy": _npy(values)}
    return tuple(Part(name=name, blob=store.put_bytes(data)) for name, data in files.items())


def read(files: Mapping[str, Path], key: str) -> NgramModel:
    """Read an n-gram model from its files.

    Args:
        key: name of the asset (`models/NAME`), for error messages.

    Raises:
        IntegrityError: the model has a different version, a file is missing, or the files do not match.
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
    """Yield the model in ARPA format, line by line. As in lmplz, `<s>` has probability one, because it is never
    predicted."""
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
        raise _refused(key, "arrays whose lengths do not match")


def _refused(key: str, found: object) -> IntegrityError:
    return IntegrityError(
        f"{key} cannot be used",
        found=found,
        expected=f"an n-gram model, {FORMAT}",
        remedy=f"train the model again: `plinth run --select {key}`",
    )


def _npy(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()

#: Share of the sample that is measured on and not trained on.
HELD_BACK = 0.05
#: Text of each bucket that bands and measures are taken from, at most.
MEASURED_BYTES = 16 * 2**20
#: A model of fewer tokens is too weak for a threshold.
LEAST_TOKENS = 1000


class NgramParams(Frozen):
    """Parameters of an n-gram model."""

    reference: tuple[str, ...] = Field(
        min_length=1,
        description="Buckets with the reference text that the model is trained on.",
    )
    bands_from: tuple[str, ...] = Field(
        (),
        description="Buckets on which the percentiles of perplexity are measured; by default, the reference buckets.",
    )
    order: int = internal(4, ge=2, le=4, description="Number of words in the longest n-grams.")
    vocabulary: int = internal(
        50_000, ge=100, le=65_535, description="Maximum vocabulary size; the most frequent words are kept."
    )
    max_bytes: int = internal(
        256 * 2**20,
        gt=0,
        description="Maximum size of the training text in bytes; training needs about 12 bytes of memory per byte of "
        "text.",
    )
    prune: tuple[int, ...] = internal(
        (0, 0, 1, 1),
        description="Pruning limits by order; an n-gram is dropped if its count is not above the limit of its order.",
    )
    percentiles: tuple[float, float] = internal(
        (30.0, 60.0), description="Percentiles of perplexity at which the bands head and middle end, as in CCNet."
    )


def _buckets(params: NgramParams) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*params.reference, *params.bands_from)))


def train(
    ctx: Context, asset: str, params: NgramParams, documents: Mapping[str, Manifest], lists: Mapping[str, Manifest]
) -> Manifest:
    """Count n-grams, estimate the model, and measure perplexities on held-back text.

    Returns:
        Manifest of the model's files. Statistics: numbers of n-grams by order, discounts, tokens, words, `perplexity`
        of the held-back reference text (median over documents), the perplexity of each bucket, and the bands.

    Raises:
        StageError: the reference buckets have too little text.
    """
    reference = {name: documents[name] for name in params.reference}
    learnt, kept = sample(reference, params.max_bytes, HELD_BACK)
    words = vocabulary(ctx, reference, learnt, params.vocabulary, asset)
    if words.rows + RESERVED < 10 or int(words.stats["tokens"]) < LEAST_TOKENS:
        raise StageError(
            f"{asset} has too little training text",
            found=f"{words.stats['tokens']} tokens, {words.rows} words that occur at least twice",
            expected=f"at least {LEAST_TOKENS} tokens",
            remedy="use larger reference buckets",
        )
    counted = grams(ctx, reference, learnt, words, params.order, asset)
    step = Step(name="ngram/estimate", version=VERSION, params={"prune": list(params.prune[: params.order])})
    item = Item((words.blob.sha256, *(part.blob.sha256 for part in counted)), (words, counted, step.params["prune"]))
    made = run_items(ctx, step, _estimate, [item], label=f"{asset}: estimate")[0]
    others = {name: documents[name] for name in _buckets(params)}
    medians, cuts = _measure(ctx, asset, params, made, others, kept)
    head = {**_head(ctx, made), "bands": list(cuts)}
    parts = [ctx.store_json("model.json", head), *made[1:]]
    stats = {
        "tokens": int(words.stats["tokens"]),
        "words": words.rows,
        **{f"ngrams_{n}": count for n, count in enumerate(head["sizes"], start=1)},
        "discounts": head["discounts"],
        "perplexity": min(medians[name] for name in params.reference),
        "perplexity_by_bucket": medians,
        "head_below": cuts[0],
        "tail_above": cuts[1],
    }
    step = Step(name="ngram", version=VERSION, params=params.model_dump(mode="json"))
    return manifest(asset, step, {f"{name}/documents": one for name, one in documents.items()}, parts, stats)


def _head(ctx: Context, made: tuple[Part, ...]) -> dict[str, Any]:
    return dict(json.loads(ctx.store.open_path(made[0].blob).read_bytes()))


def _estimate(store: Store, task: tuple[Part, tuple[Part, ...], list[int]]) -> tuple[Part, ...]:
    words, counted, prune = task
    vocabulary_ = read_table(store, words)
    keys, counts = _dense(store, counted, vocabulary_.num_rows + RESERVED)
    orders = estimate(keys, counts, tuple(prune))
    values = tuple(np.stack([one.logp, one.backoff], axis=1).astype(np.float32) for one in orders)
    head = {
        "format": FORMAT,
        "order": len(orders),
        "words": vocabulary_["word"].to_pylist(),
        "sizes": [one.keys.size for one in orders],
        "discounts": [[round(d, 6) for d in one.discounts] for one in orders],
    }
    hashes = vocabulary_["hash"].to_numpy()
    return write(store, NgramModel(head, hashes, tuple(one.keys for one in orders), values))


def _dense(store: Store, counted: tuple[Part, ...], vocabulary_: int) -> tuple[list[U64], list[I64]]:
    """Return the keys and counts of n-grams by order. Unigrams include every word of the vocabulary; a word that does
    not occur has count 0."""
    tables = [read_table(store, part) for part in counted]
    keys, counts = [one["key"].to_numpy() for one in tables], [one["count"].to_numpy() for one in tables]
    first = np.zeros(vocabulary_, dtype=np.int64)
    first[keys[0].astype(np.int64)] = counts[0]
    first[BEGIN] = 0
    return [np.arange(vocabulary_, dtype=np.uint64), *keys[1:]], [first, *counts[1:]]


def _measure(
    ctx: Context,
    asset: str,
    params: NgramParams,
    made: tuple[Part, ...],
    documents: Mapping[str, Manifest],
    kept: HashRange,
) -> tuple[dict[str, float], tuple[float, float]]:
    """Return the median perplexity of each bucket, and the perplexities at which the bands head and middle end."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, one in documents.items():
        size = int(one.stats["text_bytes"])
        share = min(1.0, MEASURED_BYTES / size) if size else 1.0
        held = kept if name in params.reference else HashRange(0, round(share * 2**32))
        step = Step(
            name="ngram/measure",
            version=VERSION,
            params={"low": held.low, "high": held.high},
            libraries=fingerprint.UNICODE,
        )
        model = tuple(part.blob.sha256 for part in made)
        items = [Item((part.blob.sha256, *model), (part, held, made), part.rows) for part in one.named("part-")]
        parts = [own[0] for own in run_items(ctx, step, _perplexities, items, label=f"{asset}: measure {name}")]
        columns = [read_table(ctx.store, part)["perplexity"].to_numpy() for part in parts]
        found[name] = np.concatenate([np.empty(0), *columns])
    medians = {name: round(float(np.median(own)), 3) if own.size else 0.0 for name, own in found.items()}
    pooled = np.concatenate([found[name] for name in params.bands_from or params.reference])
    if not pooled.size:
        return medians, (0.0, 0.0)
    low, high = np.percentile(pooled, params.percentiles)
    return medians, (round(float(low), 3), round(float(high), 3))


def _perplexities(store: Store, task: tuple[Part, HashRange, tuple[Part, ...]]) -> tuple[Part, ...]:
    part, chosen, files = task
    model = read({own.name: store.open_path(own.blob) for own in files}, "models/ngram")
    rows: list[Iterable[float]] = [model.perplexity(texts)[0] for texts in sampled(store, part, chosen)]
    values = np.concatenate([np.empty(0), *rows])
    table = pa.table({"perplexity": values[np.isfinite(values)]}, schema=pa.schema([("perplexity", pa.float64())]))
    return (write_table(store, "perplexity.parquet", table),)


def _bounds(params: NgramParams) -> tuple[tuple[str, float | None, float | None], ...]:
    return (("tokens", LEAST_TOKENS, None), ("perplexity", 1.0, None))


TRAINER = ModelTrainer(
    kind="ngram",
    version=VERSION,
    description="Modified Kneser-Ney n-gram model of reference text, with its perplexity bands.",
    source="Chen and Goodman 1998; Heafield et al. 2013 (lmplz); bands of CCNet (Wenzek et al. 2020).",
    params=NgramParams,
    buckets=_buckets,
    train=train,
    bounds=_bounds,
)
