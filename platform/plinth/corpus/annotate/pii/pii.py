"""Spans of personal data and secrets, with replacements.

A kernel finds candidate positions in one pass (`plinth_text.terms`). Rules then check these positions. Each rule reads
a bounded number of bytes, so no text can make it slow:

    network    e-mail addresses, public and private IP addresses, passwords in URLs
    numbers    payment cards, IBAN, telephone numbers
    national   national identity, tax and insurance numbers, with their check digits
    keys       keys, tokens, passwords
    names      names and addresses of people, if the recipe has a spaCy pipeline

The reason of a span is its kind, or kind and rule: `email`, `national/us_ssn`, `key/github_token`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from plinth.corpus.annotate.base import Annotator, Files
from plinth.corpus.annotate.pii import national, network, numbers
from plinth.corpus.annotate.pii.numbers import PiiHit
from plinth.errors import MissingError, StageError
from plinth.records import Frozen, internal
from plinth.storage.parts import EDIT_TYPE
from plinth_text import terms
from plinth_text.arrays import I64, U8
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8

Kind = Literal["email", "ip", "private_ip", "phone", "iban", "card", "national", "key"]
KINDS: tuple[Kind, ...] = ("email", "ip", "private_ip", "phone", "iban", "card", "national", "key")
#: A private address does not identify a person.
DEFAULT_KINDS = tuple(kind for kind in KINDS if kind != "private_ip")
NAMED = ("name", "address")
ALL_KINDS = (*KINDS, *NAMED)
SCHEMA = pa.schema(
    [pa.field(kind, pa.int32(), nullable=False) for kind in ALL_KINDS]
    + [
        pa.field("total", pa.int32(), nullable=False),
        pa.field("per_1000", pa.float32(), nullable=False),
        pa.field("spans", EDIT_TYPE, nullable=False),
    ]
)


class PiiParams(Frozen):
    """Parameters of the annotator `pii`: the kinds of personal data to find, and their replacements."""

    kinds: tuple[Kind, ...] = Field(
        DEFAULT_KINDS, description=f"Kinds of personal data to find: {', '.join(f'`{kind}`' for kind in KINDS)}."
    )
    replacements: Mapping[str, str] = Field(
        {}, description="Replacement text for each kind of personal data; by default, `<EMAIL>`, `<PHONE>` and so on."
    )
    ner: str | None = Field(
        None,
        description="Name of a list in `corpus.lists` whose files are a spaCy pipeline that finds names and "
        "addresses of people.",
    )
    ner_labels: Mapping[str, Literal["name", "address"]] = internal(
        {"PERSON": "name", "PER": "name", "ADDRESS": "address", "STREET": "address"},
        description="Kind of personal data for each entity label of the spaCy pipeline.",
    )

    @field_validator("replacements")
    @classmethod
    def _known(cls, given: Mapping[str, str]) -> Mapping[str, str]:
        unknown = [kind for kind in given if kind not in ALL_KINDS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a kind of personal data; kinds: {', '.join(ALL_KINDS)}")
        return given


@dataclass(frozen=True)
class PreparedPii:
    """Parameters of the annotator `pii`, and the loaded spaCy pipeline."""

    params: PiiParams
    nlp: Any


def resources(params: PiiParams) -> tuple[str, ...]:
    """Return the key of the list that contains the spaCy pipeline, if the parameters name one."""
    return (f"lists/{params.ner}",) if params.ner else ()


def prepare(params: PiiParams, files: Files) -> PiiParams | PreparedPii:
    """Load the spaCy pipeline, if the parameters name one."""
    return PreparedPii(params, load(params.ner, files[f"lists/{params.ner}"])) if params.ner else params


def annotate(batch: pa.RecordBatch, given: PiiParams | PreparedPii) -> pa.RecordBatch:
    """Annotate each document with its number of matches by kind, their sum, the number of matches per 1000 characters,
    and the spans of the matches in code points.

    Spans are sorted and disjoint. If spans overlap, the earlier span is kept. If spans begin together, the longer span
    is kept.
    """
    params = given.params if isinstance(given, PreparedPii) else given
    if params.ner and not isinstance(given, PreparedPii):
        raise StageError(f"the spaCy pipeline {params.ner} was not prepared", remedy="run it with annotate.stage")
    texts = batch.column("text")
    data, offsets = utf8(texts)
    found: dict[int, list[tuple[int, int, str]]] = dict(_patterns(texts, data, offsets, params.kinds))
    if isinstance(given, PreparedPii):
        for row, text in enumerate(texts.to_pylist()):
            found.setdefault(row, []).extend(entities(given.nlp, text or "", params.ner_labels))
    return _batch(found, batch.num_rows, data, offsets, params)


def _patterns(
    texts: pa.Array, data: U8, offsets: I64, kinds: tuple[str, ...]
) -> Iterator[tuple[int, list[tuple[int, int, str]]]]:
    """Yield each row of the batch that has matches, with the start, end and reason of each match, in code points."""
    places = terms.places(texts)
    rows, firsts = np.unique(places.doc, return_index=True)
    ends = np.append(firsts, places.doc.size)[1:]
    columns = [column.tolist() for column in (places.kind, places.start, places.end, places.meaning)]
    for row, first, end in zip(rows.tolist(), firsts.tolist(), ends.tolist(), strict=True):
        raw = data[offsets[row] : offsets[row + 1]].tobytes()
        hits = [hit for hit in _hits(raw, *(column[first:end] for column in columns)) if hit.kind in kinds]
        if hits:
            at = np.array([place for hit in hits for place in (hit.start, hit.end)], np.int64)
            points = _code_points(data, offsets[row], at)
            yield (
                row,
                [
                    (start, stop, hit.reason)
                    for start, stop, hit in zip(points[::2].tolist(), points[1::2].tolist(), hits, strict=True)
                ],
            )


def _hits(raw: bytes, kinds: list[int], starts: list[int], ends: list[int], meanings: list[int]) -> Iterator[PiiHit]:
    """Yield the matches that the rules accept. Candidates inside an accepted match of the same kind are skipped."""
    reached = [0] * (1 + max(kinds, default=0))
    for kind, start, end, meaning in zip(kinds, starts, ends, meanings, strict=True):
        if start >= reached[kind]:
            hit = _hit(raw, kind, start, end, meaning)
            if hit is not None:
                reached[kind] = hit.end
                yield hit


def _hit(raw: bytes, kind: int, start: int, end: int, meaning: int) -> PiiHit | None:
    if kind == terms.AT:
        return network.email(raw, start)
    if kind == terms.DOTTED:
        return network.dotted(raw, start)
    if kind == terms.HEXES:
        return network.hexes(raw, start)
    if kind == terms.RUN:
        return network.run(raw, start)
    if kind == terms.PEM:
        return network.pem(raw, start)
    if kind == terms.LETTERED:
        return numbers.iban(raw, start) or national.lettered(raw, start, meaning)
    return (
        numbers.card(raw, start, meaning)
        or national.number(raw, start, meaning)
        or numbers.phone(raw, start, end, meaning)
    )


@compiled
def sorted_points(data: U8, start: int, at: I64, order: I64, out: I64) -> None:
    """Write to `out` the number of code points before each position of a text. `order` sorts the positions."""


def _code_points(data: U8, start: int, at: I64) -> I64:
    """Return the number of code points before each byte `at` of the text that begins at `start`."""
    out = np.empty_like(at)
    sorted_points(data, start, at, np.argsort(at, kind="stable"), out)
    return out


def _batch(
    found: Mapping[int, list[tuple[int, int, str]]], rows: int, data: U8, offsets: I64, params: PiiParams
) -> pa.RecordBatch:
    counts = np.zeros((rows, len(ALL_KINDS)), np.int32)
    spans: list[tuple[int, int, str]] = []
    sizes = np.zeros(rows, np.int64)
    for row in sorted(found):
        chosen = disjoint(found[row])
        sizes[row] = len(chosen)
        spans += chosen
        for _, _, reason in chosen:
            counts[row, ALL_KINDS.index(reason.partition("/")[0])] += 1
    total = counts.sum(axis=1)
    characters = np.empty(offsets.size - 1, dtype=np.int64)
    text_characters(data, offsets, characters)
    characters = np.maximum(1, characters)
    columns = [pa.array(counts[:, place]) for place in range(len(ALL_KINDS))]
    columns += [pa.array(total, pa.int32()), pa.array(1000 * total / characters, pa.float32())]
    return pa.record_batch([*columns, _edits(spans, sizes, params)], schema=SCHEMA)


def disjoint(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return the spans sorted and without overlaps. If spans overlap, the earlier span is kept; if they begin together,
    the longer span is kept."""
    chosen: list[tuple[int, int, str]] = []
    reached = 0
    for start, end, reason in sorted(spans, key=lambda span: (span[0], -span[1], span[2])):
        if start >= reached:
            chosen.append((start, end, reason))
            reached = end
    return chosen


@compiled
def text_characters(data: U8, offsets: I64, out: I64) -> None:
    """Write to `out` the number of code points of each text."""


def _edits(spans: list[tuple[int, int, str]], sizes: I64, params: PiiParams) -> pa.Array:
    written = {kind: params.replacements.get(kind, f"<{kind.upper()}>") for kind in ALL_KINDS}
    values = [
        pa.array([start for start, _, _ in spans], pa.int32()),
        pa.array([end for _, end, _ in spans], pa.int32()),
        pa.array([written[reason.partition("/")[0]] for _, _, reason in spans], pa.string()),
        pa.array([reason for _, _, reason in spans], pa.string()),
    ]
    structs = pa.StructArray.from_arrays(values, fields=list(EDIT_TYPE.value_type))
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, structs, type=EDIT_TYPE)


ANNOTATOR = Annotator(
    name="pii",
    version="4",
    description="Spans of personal data and secrets, with replacements, and their counts by kind.",
    source="RFC 5322, 6531 and 6890, ISO/IEC 7812, ISO 13616, ITU-T E.164; national numbers as specified by their "
    "publishers.",
    params=PiiParams,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
    resources=resources,
    libraries=lambda params: ("spacy",) if params.ner else (),
    prepare=prepare,
)


# Names and addresses of people, found by the user's spaCy pipeline (the extra `ner`).
#
# The pipeline is a list of the recipe (`corpus.lists.NAME`: the folder that `nlp.to_disk` writes), so its files are
# part of the sidecar's identity. Nothing is downloaded.

#: Characters per call of a pipeline; spaCy rejects more than a million.
PIECE = 50_000


def load(name: str, files: Mapping[str, Path]) -> Any:
    """Load a spaCy pipeline, reassembled from the files of a list.

    Raises:
        MissingError: spaCy is not installed.
        StageError: the installed spaCy cannot load the files as a pipeline.
    """
    try:
        spacy = import_module("spacy")
    except ImportError as error:
        remedy = "pip install 'plinth[ner]', or remove `ner` from the parameters of pii"
        raise MissingError(f"pii.ner reads the pipeline {name}, but spaCy is not installed", remedy=remedy) from error
    with tempfile.TemporaryDirectory(prefix="plinth-ner-") as folder:
        for part, path in files.items():
            target = Path(folder, part)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        configs = sorted(Path(folder).rglob("config.cfg"), key=lambda path: len(path.parts))
        try:
            return spacy.load(configs[0].parent)
        except Exception as error:  # components may raise anything
            raise StageError(
                f"list {name} is not a loadable spaCy pipeline",
                found=f"{len(files)} files; {type(error).__name__}: {error}",
                expected="the folder that nlp.to_disk() writes, compatible with the installed spaCy",
            ) from error


def entities(nlp: Any, text: str, labels: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    """Yield the start and end in code points, and the kind, of each spaCy entity that has a label in `labels`."""
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
