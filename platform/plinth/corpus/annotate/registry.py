"""All annotators. A new one is a file in this folder, a line here, and a test; or a package of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.corpus.annotate.base import Annotator
from plinth.extensions import Catalogue
from plinth.records import Frozen

#: The modules of this folder that hold an `ANNOTATOR` of the same name, in the order of the catalogue.
MODULES = (
    "language",
    "rules.gopher_quality",
    "rules.gopher_repetition",
    "rules.c4",
    "rules.fineweb",
    "licence",
    "opt_out",
    "pii.pii",
    "url",
    "perplexity",
    "quality_classifier",
    "domain",
    "toxicity",
    "rules.gopher_dolma",
    "rules.redpajama",
    "rules.c4_lines",
    "rules.refinedweb_lines",
    "rules.repeated_tokens",
    "rules.characters",
    "illegal",
    "fasttext",
    "transformer",
    "rules.fineweb2",
)

#: Names of a bucket's other assets, which an annotator may not have.
TAKEN = ("sources", "documents", "minhash", "policy", "verdicts", "curated", "shards", "packed")

#: Annotators that a recipe can use several times: `fasttext_dclm`, `fasttext_topic`.
REPEATED = ("fasttext", "transformer")

#: Built-in annotators, and those of installed packages (entry points of the group `plinth.annotators`).
ANNOTATORS = Catalogue(
    "plinth.annotators",
    "annotator",
    Annotator,
    {name.rpartition(".")[2]: f"plinth.corpus.annotate.{name}:ANNOTATOR" for name in MODULES},
    reserved=TAKEN,
    repeated=REPEATED,
)


def annotator(name: str) -> Annotator:
    """An annotator by name.

    Raises:
        RecipeError: no such annotator; the nearest name is given.
        ExtensionError: a package has it and it cannot be used.
    """
    return ANNOTATORS.find(name)


def parameters(name: str, raw: Mapping[str, Any]) -> Frozen:
    """The parameters of an annotator out of a recipe's mapping.

    Raises:
        RecipeError: no such annotator, an unknown parameter, or a value that is not allowed.
    """
    found: Frozen = ANNOTATORS.parameters(name, raw, f"corpus.annotate.{name}")
    return found
