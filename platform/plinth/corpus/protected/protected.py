"""Protected sets, and the stage that compares every surviving document with every protected item."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.documents.normalize import normalize
from plinth.corpus.extract.extractor import Extractor
from plinth.corpus.extract.page import ExtractionFailure, Page
from plinth.corpus.extract.worker import LIBRARIES as EXTRACTORS
from plinth.corpus.protected import comparison, protected_index
from plinth.corpus.protected.parameters import Protected, ProtectedSet
from plinth.corpus.protected.protected_index import Work
from plinth.corpus.sidecars import Slot, slots, summed
from plinth.corpus.sources.parameters import Extraction, Normalisation
from plinth.corpus.sources.streams import GZIP_MAGIC
from plinth.errors import SourceError
from plinth.records import Manifest, Part, Step
from plinth.storage import listing
from plinth.storage.files import SourceFile, opened
from plinth.storage.parts import write_table
from plinth.storage.store import Store

SET_VERSION = "2"
#: Code that decides the items' text.
LIBRARIES = fingerprint.libraries("ftfy", "unicode")
PAGES = tuple(stem + end for stem in (".html", ".htm", ".xhtml") for end in ("", ".gz"))
#: Main content of pages, by the engine that recipes have unless they name another.
EXTRACTION = Extraction()
PAGE_LIBRARIES = fingerprint.libraries(*EXTRACTORS[EXTRACTION.engine])
ITEMS = pa.schema([pa.field("item", pa.string(), nullable=False), pa.field("text", pa.large_string(), nullable=False)])

#: Looked up in memory; a set that is larger is a corpus.
MAX_BYTES = 2**30


def read_set(ctx: Context, name: str, given: ProtectedSet) -> Manifest:
    """Read the items of a protected set.

    Returns:
        Manifest of one part with `ITEMS`. Statistics: `items`, `without_text` (lines without any of the fields).

    Raises:
        SourceError: there are no files, a line is not a JSON object, a page cannot be read, an item named in `only` is
            missing, or no line has text.
    """
    files, pages = _divided(inventory(ctx, given), set(given.only))
    if (size := sum(file.bytes for file in (*files, *pages))) > MAX_BYTES:
        raise SourceError(f"protected set {name} is too large", found=f"{size} bytes", expected=f"at most {MAX_BYTES}")
    rows: list[tuple[str, str]] = []
    silent, wanted = 0, set(given.only)
    for file in files:
        for number, record in _records(file):
            text = "\n".join(str(record[field]) for field in given.fields if record.get(field) not in (None, ""))
            text = normalize(text, Normalisation())  # as documents are: an item in NFD would match none of them
            name_of_item = str(record.get(given.id_field, f"{file.name.strip('/')}:{number}"))
            if wanted and name_of_item not in wanted:
                continue
            silent += not text.strip()
            if text.strip():
                rows.append((name_of_item, text))
    rows += ((page, text) for page, text in _page_texts(pages) if text.strip())
    if missing := sorted(wanted - {item for item, _ in rows}):
        raise SourceError(
            f"protected set {name} has no text for some items in `only`",
            found=f"no text of {', '.join(missing[:10])}" + (f" and {len(missing) - 10} more" if missing[10:] else ""),
            expected=f"{given.id_field} of lines in {given.path}",
            remedy=f"fix corpus.protected.sets.{name}.only: missing items are not protected",
        )
    if not rows:
        raise SourceError(
            f"protected set {name} has no text",
            found=f"{silent} lines without the fields {', '.join(given.fields)}",
            remedy=f"fix corpus.protected.sets.{name}.fields",
        )
    table = pa.table({"item": [row[0] for row in rows], "text": [row[1] for row in rows]}, schema=ITEMS)
    inputs = {f"file:{file.name.strip('/')}": file.sha256 for file in (*files, *pages)}
    step = Step(
        name="protected",
        version=SET_VERSION,
        params=given.model_dump(mode="json", exclude={"path"}),
        libraries=LIBRARIES | PAGE_LIBRARIES if pages else LIBRARIES,
    )
    part = write_table(ctx.store, "items.parquet", table)
    return manifest(f"protected/{name}", step, inputs, [part], {"items": len(rows), "without_text": silent})


def inventory(ctx: Context, given: ProtectedSet) -> list[SourceFile]:
    """Return the files that a protected set reads. If the set names only pages, the other files are not opened."""
    pages = given.only if all(name.endswith(PAGES) for name in given.only) else ()
    return listing.inventory(given.path, ctx.workspace.input, suffixes=pages)


def identity(ctx: Context, given: ProtectedSet) -> str:
    """Return one digest of the names and contents of the files that a protected set reads."""
    return fingerprint.digest([[file.name, file.sha256] for file in inventory(ctx, given)])


def _divided(files: Sequence[SourceFile], only: set[str]) -> tuple[list[SourceFile], list[SourceFile]]:
    """Return the JSONL files, and the HTML pages that `only` names. A link to a file that is already read under another
    name is left out."""
    pages = [file for file in files if file.name.endswith(PAGES)]
    lines = [file for file in files if not file.name.endswith(PAGES)]
    return lines, [file for file in pages if (file.name in only if only else not file.refused)]


def _page_texts(pages: Sequence[SourceFile]) -> Iterator[tuple[str, str]]:
    """Yield the name and the main content of each page, in the same normal form as documents from HTML sources.

    Raises:
        SourceError: a page cannot be read.
    """
    if not pages:
        return
    with Extractor(EXTRACTION) as extractor:
        for file in pages:
            with opened(file) as stream:
                (answer,) = extractor.extract([Page(_plain(file, stream.read()))])
            if isinstance(answer, ExtractionFailure):
                raise SourceError(
                    f"{file.name} is not a readable page",
                    found=f"{answer.reason}: {answer.detail}",
                    remedy="remove the file: unreadable items are not protected",
                )
            yield file.name, normalize(answer.text, Normalisation())


def _plain(file: SourceFile, data: bytes) -> bytes:
    """Return the decompressed bytes of a file that may be gzipped.

    Raises:
        SourceError: the file is damaged, or is larger than `MAX_BYTES`.
    """
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{file.name} does not decompress", found=error, remedy="fetch the file again") from error
    if len(data) > MAX_BYTES:
        raise SourceError(f"{file.name} is too large", found=f"more than {MAX_BYTES} bytes", expected="fewer")
    return data


def _records(file: SourceFile) -> Iterator[tuple[int, dict[str, Any]]]:
    with opened(file) as stream:
        data = _plain(file, stream.read())
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError(f"a {type(record).__name__}")
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{file.name}, line {number} is not a valid item",
                found=error,
                expected="a JSON object",
                remedy="fix the file: unreadable items are not protected",
            ) from error
        yield number, record


# The stage: every surviving document against every protected item.
#
# index     once       items as arrays, and their names
# counted   per part   how many documents hold each n-gram of the items, and each of their words (of a sample)
# weighed   once       the index without n-grams that too many documents hold, its words with weights
# found     per part   what its documents hold of the items (`comparison`)
# items     once       every item with what was found of it, for evaluation to score apart
# judged    per part   the sidecar
#
# Counts, and what is found, are added up in tables of which no task opens more than a bounded number. All is decided
# again over the current corpus: an n-gram that becomes common in a later snapshot is no longer evidence, for earlier
# documents either; unless survivors are lost, a common n-gram does not become evidence again.

ASSET = "protected"
#: The asset with the probes, which are protected sets as well.
PROBES = "probe_sets"
#: Prefix of a probe's name among the sets: `probes/NAME`.
PREFIX = "probes/"
VERSION = "2"
REASONS, SCHEMA = comparison.REASONS, comparison.SCHEMA


def run(
    ctx: Context,
    params: Protected,
    documents: Mapping[str, Manifest],
    survivors: Manifest,
    holdout: Manifest,
    sets: Mapping[str, Manifest],
    probes: Manifest | None = None,
) -> Manifest:
    """Match every training document against the protected sets.

    Args:
        documents: `{b}/documents` by bucket.
        survivors: manifest of the last deduplication stage that is enabled.
        holdout: manifest of `holdout`; held-out documents are not compared.
        sets: manifests of `protected/NAME`, by name.
        probes: manifest of `probe_sets`; each of its parts `NAME.parquet` is compared as the set `probes/NAME`.

    Returns:
        Manifest of `{b}/part-*` with `SCHEMA`, and `items.parquet`: every item with its status.
        Statistics: `considered`, `suspects`, documents by reason; `sets` with items by status.
    """
    places = slots(documents, survivors=survivors, holdout=holdout)
    given = {name: made.parts[0] for name, made in sets.items()} | probe_parts(probes)
    plain, names = _indexed(ctx, params, given)
    index = _weights(ctx, params, places, plain)
    step = Step(name="protected/found", version=VERSION, params=_thresholds(params), libraries=fingerprint.UNICODE)
    work = [
        Item((*_inputs(slot), index.blob.sha256), Work(slot, params, index), slot.documents.rows) for slot in places
    ]
    found = run_items(ctx, step, comparison.found, work, label=ASSET)
    table = _table(ctx, params, index, names, tuple(one[1] for one in found))
    step = Step(name=ASSET, version=VERSION, params=_thresholds(params))
    items = [
        Item(
            (*_inputs(slot), pairs.blob.sha256, table.blob.sha256),
            comparison.Judge(slot, params, pairs, table),
            slot.documents.rows,
        )
        for slot, (pairs, _) in zip(places, found, strict=True)
    ]
    made = run_items(ctx, step, comparison.judged, items, label=f"{ASSET}: verdicts")
    parts = [one[0].model_copy(update={"name": slot.name}) for slot, one in zip(places, made, strict=True)]
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()}
    inputs |= {"survivors": survivors, "holdout": holdout}
    inputs |= {f"protected/{name}": one for name, one in sets.items()} | ({PROBES: probes} if probes else {})
    stats = {**summed(parts, comparison.STATS), "sets": table.stats["sets"]}
    return manifest(ASSET, step, inputs, [*parts, table], stats)


def probe_parts(made: Manifest | None) -> dict[str, Part]:
    """Return the parts of `probe_sets`, by the names `probes/NAME` that they have among the protected sets."""
    if made is None:
        return {}
    held = {part.name: part for part in made.parts}
    return {f"{PREFIX}{name}": held[f"{name}.parquet"] for name in made.stats["sets"]}


def _thresholds(params: Protected) -> dict[str, Any]:
    return params.model_dump(mode="json", exclude={"sets"})


def _inputs(slot: Slot) -> tuple[str, ...]:
    return (slot.documents.blob.sha256, *(slot.sides[name].blob.sha256 for name in ("survivors", "holdout")))


def _indexed(ctx: Context, params: Protected, sets: Mapping[str, Part]) -> tuple[Part, Part]:
    """Write the index of items without word frequencies of the training text, and the names of the items."""
    step = Step(
        name="protected/index",
        version=VERSION,
        params=params.model_dump(include={"candidate_words", "min_words", "longest_words", "boilerplate_documents"}),
        libraries=fingerprint.UNICODE,
    )
    digests = tuple(digest for name in sorted(sets) for digest in (name, sets[name].blob.sha256))
    items, label = [Item(digests, (sets, params))], f"{ASSET}: index of benchmark items"
    plain, names = run_items(ctx, step, _index, items, label=label)[0]
    return plain, names


def _index(store: Store, task: tuple[Mapping[str, Part], Protected]) -> tuple[Part, ...]:
    sets, params = task
    names, texts = protected_index.items(store, sets)
    table = pa.table([[name[i] for name in names] for i in range(2)], schema=comparison.NAMES)
    return protected_index.write(store, protected_index.build(texts, params)), write_table(
        store, "names.parquet", table
    )


def _weights(ctx: Context, params: Protected, places: tuple[Slot, ...], plain: Part) -> Part:
    limit, denied = params.boilerplate_documents, params.model_dump(mode="json", include={"families"})
    given = {"sampled": protected_index.SAMPLED, "longest_words": params.longest_words, "limit": limit, **denied}
    step = Step(name="protected/counted", version=VERSION, params=given, libraries=fingerprint.UNICODE)
    items = [
        Item((*_inputs(slot), plain.blob.sha256), Work(slot, params, plain), slot.documents.rows) for slot in places
    ]
    counted = run_items(ctx, step, protected_index.counted, items, label=f"{ASSET}: counts")
    bounds = (None, None if limit is None else limit + 1)
    words, grams = (
        protected_index.narrowed(
            ctx,
            Step(name="protected/tally", version=VERSION, params={"bound": bound}),
            [parts[i] for parts in counted],
            label=f"{ASSET}: counts",
            bound=bound,
        )
        for i, bound in enumerate(bounds)
    )
    step = Step(name="protected/weighed", version=VERSION, params=_thresholds(params))
    item = Item(tuple(part.blob.sha256 for part in (plain, *words, *grams)), (plain, params, words, grams))
    return run_items(ctx, step, _weighed, [item], label=f"{ASSET}: weigh")[0][0]


def _weighed(store: Store, task: tuple[Part, Protected, tuple[Part, ...], tuple[Part, ...]]) -> tuple[Part, ...]:
    plain, params, words, grams = task
    index, limit = protected_index.read(store, plain), params.boilerplate_documents
    frequencies = protected_index.dense(store, words, index.vocabulary.size)
    common = protected_index.dense(store, grams, index.evidence.size) > (0 if limit is None else limit)
    looked_at = sum(int(part.stats["looked_at"]) for part in words)
    return (protected_index.write(store, protected_index.weighed(index, params, looked_at, frequencies, common)),)


def _table(ctx: Context, params: Protected, index: Part, names: Part, pairs: tuple[Part, ...]) -> Part:
    step = Step(name="protected/pairs", version=VERSION)
    held = protected_index.narrowed(ctx, step, pairs, label=f"{ASSET}: items", how=comparison.ITEM_TABLE_PAIRS)
    step = Step(name="protected/items", version=VERSION, params=_thresholds(params))
    item = Item(
        tuple(part.blob.sha256 for part in (index, names, *held)), comparison.Tables(index, names, held, params)
    )
    return run_items(ctx, step, comparison.write, [item], label=f"{ASSET}: items")[0][0]
