"""Queries on the published ledger with DuckDB, straight from its Parquet parts. No text is read here.

The ledger is immutable, so results are cached by its digest and the query. DuckDB has a fixed memory limit and cannot
load extensions or write files. Every query is a `select` whose values are parameters.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plinth.compute.context import Context
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.errors import IntegrityError, MissingError, PlinthError, StorageError
from plinth.extensions import require
from plinth.provenance.ledger import ASSET
from plinth.records import Manifest, Part, bucket_of
from plinth_extras.corpus_page.view import FACETS, PAGE_ROWS, UNLISTED, View, quoted

#: DuckDB's own memory; with Python and Arrow, the process stays below 500 MB.
MEMORY: Final = "192MB"
THREADS: Final = 2
#: Facets with few values, which are counted together.
JOINT: Final = ("bucket", "decision", "reason", "language", "licence")
#: Values of a facet that are listed, most frequent first.
FACET_VALUES: Final = 14
#: Bins of a histogram.
BINS: Final = 44
#: Results that are kept, and the largest of them in rows.
CACHED_RESULTS, CACHED_ROWS = 512, 2_000
#: Columns of a row in the list, if the ledger has them; columns of histograms and of the sort order are added.
ROW_COLUMNS: Final = (
    "id", "bucket", "domain", "uri", "decision", "reason", "fired", "cluster", "cluster_size", "text_bytes",
    "language__label", "edits",
)  # fmt: skip
_NUMERIC: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE")
#: Columns that are numbers, but no scores.
_NO_SCORES: Final = frozenset({"position", "source"})


@dataclass(frozen=True)
class LedgerPart:
    """Part of the ledger, with its bucket and its number among the parts of this bucket's documents."""

    bucket: str
    number: int
    part: Part
    path: str


@dataclass(frozen=True)
class Bin:
    """Bar of a histogram: documents of `low` up to, but not including, `high`."""

    low: float
    high: float
    trained: int
    others: int

    @property
    def documents(self) -> int:
        """All documents of this bar."""
        return self.trained + self.others


@dataclass(frozen=True)
class Totals:
    """Numbers of a list: documents, those in the training set, bytes of text and tokens."""

    documents: int
    trained: int
    text_bytes: int
    tokens: int


@dataclass(frozen=True)
class OpenLedger:
    """Ledger that is open for queries.

    Args:
        columns: DuckDB type of each column.
    """

    made: Manifest
    parts: tuple[LedgerPart, ...]
    columns: Mapping[str, str]
    _reader: LedgerReader = field(repr=False)

    @property
    def numeric(self) -> list[str]:
        """Numeric columns, which can be sorted, drawn and filtered by ranges."""
        return [name for name, kind in self.columns.items() if kind in _NUMERIC and name not in _NO_SCORES]

    @property
    def source(self) -> str:
        """The ledger as an SQL table, with `filename` and `file_row_number`."""
        return table([one.path for one in self.parts])

    def counts(self, view: View) -> tuple[Totals, dict[str, list[tuple[str, int]]]]:
        """Return the totals of a list, and the most frequent values of every facet with their number of documents.

        The filter of a facet itself is ignored for its own values; chosen values come first; null is the empty string.
        Facets with few values are counted together: one scan gives the documents of each combination.
        """
        have = [name for name, column in FACETS.items() if column in self.columns and name not in UNLISTED]
        joint = [name for name in have if name in JOINT]
        where, values = view.where(*joint)
        columns = ", ".join(quoted(FACETS[name]) for name in joint)
        sums = "count(*), coalesce(sum(text_bytes), 0), coalesce(sum(tokens), 0)"
        rows = self.query(f"select {columns}, {sums} from {self.source} where {where} group by all", values)
        chosen = [set(view.values(name)) for name in joint]
        tallies: dict[str, Counter[str]] = {name: Counter() for name in joint}
        total, trained = [0, 0, 0], 0
        for found in rows:
            row = [*(value or "" for value in found[: len(joint)]), *found[len(joint) :]]
            misses = [at for at, wanted in enumerate(chosen) if wanted and row[at] not in wanted]
            if not misses:
                total = [total[i] + int(row[len(joint) + i]) for i in range(3)]
                trained += int(row[len(joint)]) if row[joint.index("decision")] == "train" else 0
            for at in misses if len(misses) == 1 else range(len(joint)) if not misses else ():
                tallies[joint[at]][row[at]] += int(row[len(joint)])
        facets = {
            name: _listed(tallies[name], view.values(name)) if name in joint else self._facet(view, name)
            for name in have
        }
        return Totals(total[0], trained, total[1], total[2]), facets

    def _facet(self, view: View, facet: str) -> list[tuple[str, int]]:
        """Return the values of a facet that may have many values."""
        column, (where, values) = quoted(FACETS[facet]), view.where(facet)
        value = f"unnest({column})" if facet == "rule" else column
        chosen = list(view.values(facet))
        rows = self.query(
            f"select coalesce(value, ''), count(*) as n "
            f"from (select {value} as value from {self.source} where {where}) group by value "
            "order by list_contains(?, coalesce(value, '')) desc, n desc, value limit ?",
            [*values, chosen, FACET_VALUES + len(chosen)],
        )
        return _listed(Counter({str(value): int(n) for value, n in rows}), chosen)

    def histograms(self, view: View) -> list[tuple[str, list[Bin]]]:
        """Return the histograms of a list. The range of a column itself is ignored for its own histogram.

        The bins span the whole ledger, so that they stay where they are when a filter changes.
        """
        free = [column for column in view.shown if view.range_of(column) is None]
        found = self._histograms(view, free) if free else {}
        for column in view.shown:
            if column not in found:
                found |= self._histograms(view, [column])
        return [(column, found[column]) for column in view.shown]

    def _histograms(self, view: View, columns: Sequence[str]) -> dict[str, list[Bin]]:
        """Return the histograms of columns with the same filter, in one scan."""
        edges = {column: self.edges(column) for column in columns}
        # DuckDB includes the upper bound of a bin; the number just below an edge therefore excludes the edge
        bounds = {column: np.nextafter(np.array(own[1:]), -math.inf).tolist() for column, own in edges.items()}
        where, values = view.where(*columns)
        drawn = ", ".join(f"histogram({quoted(column)}::double, ?)" for column in columns)
        rows = self.query(
            f"select decision = 'train', {drawn} from {self.source} where {where} group by 1",
            [*bounds.values(), *values],
        )
        counts = {bool(row[0]): row[1:] for row in rows}

        def bar(at: int, bound: float, trained: bool) -> int:
            return int((counts[trained][at] or {}).get(bound, 0)) if trained in counts else 0

        return {
            column: [
                Bin(low, high, bar(at, bound, True), bar(at, bound, False))
                for low, high, bound in zip(edges[column], edges[column][1:], bounds[column], strict=False)
            ]
            for at, column in enumerate(columns)
        }

    def edges(self, column: str) -> tuple[float, ...]:
        """Return the edges of the bins of a column."""
        value = f"{quoted(column)}::double"
        bounds = f"select min({value}), max({value}) from {self.source} where isfinite({value})"
        ((low, high),) = self.query(bounds, [])
        if low is None:
            return (0.0, 1.0)
        return edges(float(low), float(high), whole="INT" in self.columns[column])

    def rows(self, view: View) -> list[dict[str, Any]]:
        """Return the documents of one page of the list, in order. `at` is the place: bucket, part and row."""
        where, values = view.where()
        column = view.sort.removeprefix("-")
        direction = "desc" if view.sort.startswith("-") else "asc"
        order = f"order by {quoted(column)} {direction} nulls last, filename, file_row_number" if column else ""
        rows = self.query(  # only the columns of the filter and the order are read here
            f"select filename, file_row_number from {self.source} where {where} {order} limit ? offset ?",
            [*values, PAGE_ROWS, (view.page - 1) * PAGE_ROWS],
        )
        numbers = {one.path: number for number, one in enumerate(self.parts)}
        return self.at([(numbers[path], int(row)) for path, row in rows], (*view.shown, *([column] if column else [])))

    def at(self, places: Sequence[tuple[int, int]], more: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the rows at places, in their order, with more columns. A place is the index of a part in `parts`, and
        a row."""
        if not places:
            return []
        wanted = [one for one in dict.fromkeys((*ROW_COLUMNS, *more)) if one in self.columns]
        paths = [self.parts[number].path for number in sorted({part for part, _ in places})]
        rows = self.query(  # the rows of all places, in each of their parts
            f"select filename, file_row_number, {', '.join(map(quoted, wanted))} from {table(paths)} "
            "where list_contains(?, file_row_number)",
            [sorted({row for _, row in places})],
        )
        found = {(row[0], int(row[1])): self._named(wanted, row) for row in rows}
        return [found[self.parts[part].path, row] for part, row in places]

    def find(self, ids: Sequence[str], view: View | None = None) -> dict[str, dict[str, Any]]:
        """Return the rows of documents by their ids, without those that are not in a list."""
        where, values = (view or View()).where()
        wanted = [one for one in ROW_COLUMNS if one in self.columns]
        rows = self.query(
            f"select filename, file_row_number, {', '.join(map(quoted, wanted))} from {self.source} "
            f"where list_contains(?, id) and {where}",
            [list(ids), *values],
        )
        return {row["id"]: row for row in (self._named(wanted, one) for one in rows)}

    def whole(self, part: int, row: int) -> dict[str, Any]:
        """Return every column of one document."""
        names = list(self.columns)
        columns = ", ".join(map(quoted, names))
        rows = self.query(f"select {columns} from {table([self.parts[part].path])} where file_row_number = ?", [row])
        return dict(zip(names, rows[0], strict=True)) if rows else {}

    def query(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return all rows of a query, from the cache if it was answered before."""
        return self._reader.rows(sql, values)

    def numbers(self, sql: str, values: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return the whole numbers of a query's column `n`, which may be many; they are not cached."""
        return self._reader.numbers(sql, values)

    def number(self, bucket: str, number: int) -> int:
        """Return the index in `parts` of a bucket's part.

        Raises:
            MissingError: the ledger has no such part.
        """
        for index, one in enumerate(self.parts):
            if (one.bucket, one.number) == (bucket, number):
                return index
        raise MissingError(f"the ledger has no part {number} of the bucket {bucket}")

    def _named(self, names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
        place = next(one for one in self.parts if one.path == row[0])
        return {**dict(zip(names, row[2:], strict=True)), "at": (place.bucket, place.number, int(row[1]))}


class LedgerReader:
    """DuckDB connection that opens the published ledger for each request.

    Raises:
        MissingError: DuckDB is not installed.
    """

    def __init__(self) -> None:
        self._duckdb = require("duckdb", "page")
        self._connection = self._duckdb.connect(":memory:")
        for name, value in (
            ("memory_limit", MEMORY),
            ("threads", THREADS),
            ("autoinstall_known_extensions", False),
            ("autoload_known_extensions", False),
            ("temp_directory", ""),
            ("parquet_metadata_cache", True),
            ("lock_configuration", True),
        ):
            self._connection.execute(f"set {name} = {value!r}" if isinstance(value, str) else f"set {name} = {value}")
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[bytes, tuple[Any, ...]], list[tuple[Any, ...]]] = OrderedDict()
        self._columns = lru_cache(4)(self._columns_of)

    @contextmanager
    def opened(self, ctx: Context) -> Iterator[OpenLedger]:
        """Open the published ledger of a workspace. Its files stay available until the end of the `with` block.

        Raises:
            MissingError, IntegrityError: there is no ledger, or a part is missing, truncated or changed.
            StorageError: DuckDB cannot read the parts, or needs more memory than its limit.
        """
        made = ctx.refs.current(ASSET)
        with ctx.store.for_task() as store:
            # planted canaries have no verdict
            named = [part for part in made.parts if "/part-" in part.name and bucket_of(part.name) != CANARIES]
            parts = []
            for bucket in dict.fromkeys(bucket_of(part.name) for part in named):
                own = made.named(f"{bucket}/part-")
                parts += [LedgerPart(bucket, i, part, str(store.open_path(part.blob))) for i, part in enumerate(own)]
            if not any(one.part.rows for one in parts):
                raise MissingError("the ledger has no documents", remedy="run the pipeline on a source with documents")
            # an empty part has no place in a list, and its schema may lack columns
            filled = tuple(one for one in parts if one.part.rows)
            with self._named_errors():
                yield OpenLedger(made, filled, self._columns(made.digest, filled[0].path), self)

    def rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return all rows of a query. The query names the files, whose names are digests of their content."""
        key = hashlib.sha256(sql.encode()).digest(), _frozen(values)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        found = self._rows(sql, key[1])
        with self._lock:
            if len(found) <= CACHED_ROWS:
                self._cache[key] = found
            while len(self._cache) > CACHED_RESULTS:
                self._cache.popitem(last=False)
        return found

    def numbers(self, sql: str, values: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return the whole numbers of a query's column `n`."""
        with self._connection.cursor() as cursor:
            found = cursor.execute(sql, list(values)).fetchnumpy()["n"]
        return np.asarray(found, dtype=np.int64)

    def _rows(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            return list(cursor.execute(sql, _thawed(values)).fetchall())

    def _columns_of(self, digest: str, path: str) -> dict[str, str]:
        found = self._rows(f"describe select * from read_parquet([{_text(path)}])", ())
        return {str(row[0]): str(row[1]) for row in found}

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except self._duckdb.OutOfMemoryException as error:
            raise StorageError(
                "the query needs more memory than the page may use",
                found=_first_line(error),
                expected=f"at most {MEMORY}",
                remedy="add a filter, such as a bucket",
            ) from error
        except self._duckdb.Error as error:
            raise IntegrityError(
                "the ledger cannot be read",
                found=_first_line(error),
                expected="the Parquet parts of the published ledger",
                remedy="`plinth run --select ledger` writes it again",
            ) from error


def _listed(tally: Counter[str], chosen: Sequence[str]) -> list[tuple[str, int]]:
    """Return the chosen values, followed by the most frequent other values."""
    others = sorted(
        ((value, n) for value, n in tally.items() if value not in chosen), key=lambda one: (-one[1], one[0])
    )
    return [*((value, tally[value]) for value in chosen), *others[:FACET_VALUES]]


def table(paths: Sequence[str]) -> str:
    """Return Parquet files as an SQL table with `filename` and `file_row_number`."""
    return f"read_parquet([{', '.join(map(_text, paths))}], filename = true, file_row_number = true)"


def edges(low: float, high: float, whole: bool) -> tuple[float, ...]:
    """Return increasing edges of at most `BINS` bins over a range; the last edge is above `high`.

    A range from 0 on that spans more than two orders of magnitude has logarithmic bins. Edges have at most three
    significant digits, so that they can be read.
    """
    if whole and high - low < BINS:
        return tuple(float(value) for value in range(int(low), int(high) + 2))
    if low >= 0 and high > 100:
        found = np.expm1(np.linspace(math.log1p(low), math.log1p(high), BINS + 1))
    else:
        found = np.linspace(low, high if high > low else low + 1, BINS + 1)
    inner = {_rounded(value, whole) for value in found[1:-1].tolist()}
    first = math.floor(low) if whole else low
    last = math.floor(high) + 1 if whole else math.nextafter(max(high, low), math.inf)
    return (float(first), *sorted(value for value in inner if first < value < last), float(last))


def _rounded(value: float, whole: bool) -> float:
    return float(round(value)) if whole and abs(value) < 1000 else float(f"{value:.3g}")


def _text(path: str) -> str:
    return "'" + path.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _frozen(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _thawed(values: Sequence[Any]) -> list[Any]:
    return [list(value) if isinstance(value, tuple) else value for value in values]


def is_stale(ctx: Context, ledger: OpenLedger) -> bool:
    """Return True if verdicts have been published since the ledger was written."""
    names = (name for name in ledger.made.inputs if name.endswith("/verdicts"))
    try:
        return any((ref := ctx.refs.ref(name)) is not None and ref.digest != ledger.made.inputs[name] for name in names)
    except PlinthError:
        return True
