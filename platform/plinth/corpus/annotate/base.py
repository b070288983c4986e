"""The record that describes an annotator (a pure function over batches of documents), and all annotators by name.

To add an annotator, add a file in this folder, a line in `ANNOTATORS` below, and a test. An annotator can also be
published as a separate package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compute.context import Context
from plinth.corpus.lists import ListTable
from plinth.corpus.llm.parameters import Endpoint
from plinth.errors import RecipeError
from plinth.extensions import Catalogue
from plinth.records import Frozen, Manifest
from plinth.storage.parts import EDIT_TYPE

#: Files of an annotator's resources: resource key -> part name -> path of a read-only local copy.
Files = Mapping[str, Mapping[str, Path]]


#: Key under which `prepare` finds the files of `Annotator.tables`.
TABLES = "tables"
#: Name in `Annotator.after` of the manifest that `Annotator.asks` returns.
ANSWERS = "answers"
#: `(ctx, asset, params, documents, resources, endpoints) -> answers, aligned with the documents`.
Ask = Callable[[Context, str, Any, Manifest, Mapping[str, Manifest], Mapping[str, Endpoint]], Manifest]
#: Annotator whose columns can be named: its name, with its columns if they depend on its parameters.
Available = str | tuple[str, pa.Schema]


@dataclass(frozen=True)
class Annotator:
    """Annotator that writes a sidecar of scores, labels or spans.

    Args:
        name: name of the sidecar, and prefix of its columns in policies (`name.column`).
        version: version of the annotator's code; raise it when a change gives the same text different values.
        description: one sentence for the catalog.
        source: paper, project or library that defines the values.
        params: frozen model of the parameters in the recipe.
        schema: columns of the sidecar.
        reads: columns of the documents that `annotate` needs.
        after: columns of other annotators' sidecars that `annotate` needs, such as `language.label`; text columns
            are plain strings.
        annotate: function that takes a batch with the columns of `reads` and `after`, and the prepared parameters.
            The function returns a batch of `schema` with one row per input row. It is `external.only_external` if only
            a program in another environment can compute the columns.
        resources: assets, other than the documents, that the annotator reads for given parameters: `models/NAME`
            (trained by the pipeline, `corpus.models` of the recipe) or `lists/NAME` (files of the user,
            `corpus.lists`). Their digests are part of the sidecar's identity, so the annotator is re-run only if they
            change.
        learned: columns whose values come from a model. If None, all columns do, provided that the annotator needs a
            model.
        libraries: third-party libraries that affect the annotator's output, by their names in `fingerprint.libraries`,
            in addition to the Unicode tables. Their versions and digests are part of the sidecar's identity.
        tables: `(params, files of the resources) -> tables by name`, for resources too large to read in every worker.
            The tables are built once per list, stored, and passed to `prepare` as the files of `TABLES`, for memory
            mapping.
        prepare: `(params, files of the resources) -> second argument of annotate`, called once per worker process and
            set of files; if None, `annotate` gets the parameters.
        columns: function that returns the columns of the sidecar for given parameters. If None, they are `schema`.
        asks: function that asks an endpoint about the documents before the workers start. `annotate` reads the columns
            of its manifest as `answers.COLUMN`.
    """

    name: str
    version: str
    description: str
    source: str
    params: type[Frozen]
    schema: pa.Schema
    reads: tuple[str, ...]
    annotate: Callable[[pa.RecordBatch, Any], pa.RecordBatch]
    after: tuple[str, ...] = ()
    resources: Callable[[Any], tuple[str, ...]] | None = None
    learned: tuple[str, ...] | None = None
    libraries: Callable[[Any], tuple[str, ...]] | None = None
    tables: Callable[[Any, Files], Mapping[str, ListTable]] | None = None
    prepare: Callable[[Any, Files], Any] | None = None
    columns: Callable[[Any], pa.Schema] | None = None
    asks: Ask | None = None

    def needs(self, params: Any) -> tuple[str, ...]:
        """Return the keys of the resources that the annotator reads with these parameters."""
        return self.resources(params) if self.resources else ()

    @property
    def aligned(self) -> dict[str, list[str]]:
        """Return the columns listed in `after`, grouped by the sidecar that has them."""
        found: dict[str, list[str]] = {}
        for name in self.after:
            other, _, column = name.partition(".")
            found.setdefault(other, []).append(column)
        return found

    @property
    def sidecars(self) -> dict[str, list[str]]:
        """Return the columns listed in `after`, grouped by the annotator that writes them."""
        return {name: columns for name, columns in self.aligned.items() if name != ANSWERS}


Integers = npt.NDArray[np.integer]


def spans(of: Integers, begin: Integers, end: Integers, why: Integers, reasons: Sequence[str], rows: int) -> pa.Array:
    """Return the spans to cut, sorted by document and position. Adjacent spans with the same reason are merged.

    Args:
        of, begin, end, why: [S] for each span, the row of its document, its start and end in code points (half open),
            and the index of its reason in `reasons`.
        reasons: names of the reasons.
        rows: number of documents.
    """
    full = end > begin  # skip empty spans: if a text ends with a line end, its last line is empty
    of, begin, end, why = of[full], begin[full], end[full], why[full]
    if of.size:
        order = np.lexsort((begin, of))
        of, begin, end, why = of[order], begin[order], end[order], why[order]
        fresh = np.ones(of.size, dtype=np.bool_)
        fresh[1:] = (of[1:] != of[:-1]) | (begin[1:] != end[:-1]) | (why[1:] != why[:-1])
        first = np.flatnonzero(fresh)
        last = np.concatenate([first[1:], [of.size]]) - 1
        of, begin, end, why = of[first], begin[first], end[last], why[first]
    made = pa.StructArray.from_arrays(
        [
            pa.array(begin, pa.int32()),
            pa.array(end, pa.int32()),
            pa.array([""], pa.string()).take(pa.array(np.zeros(of.size, dtype=np.int64))),
            pa.array(reasons, pa.string()).take(pa.array(why, pa.int64())),
        ],
        fields=list(EDIT_TYPE.value_type),
    )
    offsets = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=rows))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), made, type=EDIT_TYPE)


#: Reserved names: the other assets of a bucket.
TAKEN = ("sources", "documents", "minhash", "policy", "verdicts", "curated", "shards", "packed")

#: Annotators that a recipe can use several times: `fasttext_dclm`, `fasttext_topic`.
REPEATED = ("fasttext", "transformer", "llm", "student")

#: Built-in annotators, and annotators of installed packages (entry points of the group `plinth.annotators`).
ANNOTATORS = Catalogue(
    "plinth.annotators",
    "annotator",
    Annotator,
    {
        "language": "plinth.corpus.annotate.language:ANNOTATOR",
        "gopher_quality": "plinth.corpus.annotate.rules.gopher:GOPHER_QUALITY",
        "gopher_repetition": "plinth.corpus.annotate.rules.gopher:GOPHER_REPETITION",
        "c4": "plinth.corpus.annotate.rules.c4:C4",
        "fineweb": "plinth.corpus.annotate.rules.fineweb:FINEWEB",
        "licence": "plinth.corpus.annotate.licence:LICENCE",
        "opt_out": "plinth.corpus.annotate.licence:OPT_OUT",
        "extraction": "plinth.corpus.annotate.extraction:ANNOTATOR",
        "pii": "plinth.corpus.annotate.pii.pii:ANNOTATOR",
        "url": "plinth.corpus.annotate.blocklists:URL",
        "perplexity": "plinth.corpus.annotate.learned:PERPLEXITY",
        "quality_classifier": "plinth.corpus.annotate.learned:QUALITY_CLASSIFIER",
        "domain": "plinth.corpus.annotate.learned:DOMAIN",
        "toxicity": "plinth.corpus.annotate.learned:TOXICITY",
        "gopher_dolma": "plinth.corpus.annotate.rules.gopher:GOPHER_DOLMA",
        "redpajama": "plinth.corpus.annotate.rules.gopher:REDPAJAMA",
        "c4_lines": "plinth.corpus.annotate.rules.c4:C4_LINES",
        "refinedweb_lines": "plinth.corpus.annotate.rules.c4:REFINEDWEB_LINES",
        "repeated_tokens": "plinth.corpus.annotate.rules.gopher:REPEATED_TOKENS",
        "characters": "plinth.corpus.annotate.rules.gopher:CHARACTERS",
        "illegal": "plinth.corpus.annotate.blocklists:ILLEGAL",
        "fasttext": "plinth.corpus.annotate.language:FASTTEXT",
        "transformer": "plinth.corpus.annotate.language:TRANSFORMER",
        "fineweb2": "plinth.corpus.annotate.rules.fineweb:FINEWEB2",
        "student": "plinth.corpus.annotate.student:ANNOTATOR",
        "llm": "plinth.corpus.annotate.llm:ANNOTATOR",
    },
    reserved=TAKEN,
    repeated=REPEATED,
)


def annotator(name: str) -> Annotator:
    """Return an annotator by name.

    Raises:
        RecipeError: there is no annotator with this name; the error suggests the closest name.
        ExtensionError: the annotator of an installed package is unusable.
    """
    return ANNOTATORS.find(name)


def parameters(name: str, raw: Mapping[str, Any]) -> Frozen:
    """Return the parameters of an annotator from a recipe's mapping.

    Raises:
        RecipeError: the annotator or a parameter does not exist, or a value is not allowed.
    """
    found: Frozen = ANNOTATORS.parameters(name, raw, f"corpus.annotate.{name}")
    return found


def resolved(name: str, params: Frozen) -> Annotator:
    """Return an annotator with the columns that it writes with these parameters."""
    found = annotator(name)
    return found if found.columns is None else replace(found, schema=found.columns(params))


def available(annotators: Mapping[str, Any]) -> tuple[Available, ...]:
    """Return annotators in a form from which `columns_of` finds their columns.

    Args:
        annotators: parameters in the recipe, or manifests of sidecars, by annotator.
    """
    return tuple(
        name if annotator(name).columns is None else (name, _schema(name, given)) for name, given in annotators.items()
    )


def _schema(name: str, given: Any) -> pa.Schema:
    raw = given.params["params"] if isinstance(given, Manifest) else given or {}
    try:
        return resolved(name, parameters(name, raw)).schema
    except RecipeError:  # reported where the recipe's parameters are checked
        return annotator(name).schema
