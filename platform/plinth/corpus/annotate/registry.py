"""All annotators. A new one is a file in this folder, a line here, and a test; or a package of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.corpus.annotate.base import Annotator
from plinth.extensions import Catalogue
from plinth.records import Frozen

#: Names of a bucket's other assets, which an annotator may not have.
TAKEN = ("sources", "documents", "minhash", "policy", "verdicts", "curated", "shards", "packed")

#: Annotators that a recipe can use several times: `fasttext_dclm`, `fasttext_topic`.
REPEATED = ("fasttext", "transformer")

#: Built-in annotators, and those of installed packages (entry points of the group `plinth.annotators`).
ANNOTATORS = Catalogue(
    "plinth.annotators",
    "annotator",
    Annotator,
    {
        "language": "plinth.corpus.annotate.language:ANNOTATOR",
        "gopher_quality": "plinth.corpus.annotate.rules.gopher_quality:ANNOTATOR",
        "gopher_repetition": "plinth.corpus.annotate.rules.gopher_repetition:ANNOTATOR",
        "c4": "plinth.corpus.annotate.rules.c4:ANNOTATOR",
        "fineweb": "plinth.corpus.annotate.rules.fineweb:ANNOTATOR",
        "licence": "plinth.corpus.annotate.licence:ANNOTATOR",
        "opt_out": "plinth.corpus.annotate.opt_out:ANNOTATOR",
        "pii": "plinth.corpus.annotate.pii.pii:ANNOTATOR",
        "url": "plinth.corpus.annotate.url:ANNOTATOR",
        "perplexity": "plinth.corpus.annotate.perplexity:ANNOTATOR",
        "quality_classifier": "plinth.corpus.annotate.quality_classifier:ANNOTATOR",
        "domain": "plinth.corpus.annotate.domain:ANNOTATOR",
        "toxicity": "plinth.corpus.annotate.toxicity:ANNOTATOR",
        "gopher_dolma": "plinth.corpus.annotate.rules.gopher_dolma:ANNOTATOR",
        "redpajama": "plinth.corpus.annotate.rules.redpajama:ANNOTATOR",
        "c4_lines": "plinth.corpus.annotate.rules.c4_lines:ANNOTATOR",
        "refinedweb_lines": "plinth.corpus.annotate.rules.refinedweb_lines:ANNOTATOR",
        "repeated_tokens": "plinth.corpus.annotate.rules.repeated_tokens:ANNOTATOR",
        "characters": "plinth.corpus.annotate.rules.characters:ANNOTATOR",
        "illegal": "plinth.corpus.annotate.illegal:ANNOTATOR",
        "fasttext": "plinth.corpus.annotate.fasttext:ANNOTATOR",
        "transformer": "plinth.corpus.annotate.transformer:ANNOTATOR",
        "fineweb2": "plinth.corpus.annotate.rules.fineweb2:ANNOTATOR",
    },
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
