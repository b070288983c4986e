"""The detector of the corpus, asked for every kind that can name a person.

A recipe may look for fewer kinds, and then replaces fewer: what it left out is counted here all the same. With a spaCy
pipeline of the recipe names and addresses are counted, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.corpus.annotate.pii.pii import ANNOTATOR, DEFAULT_KINDS, KINDS, NAMED, PiiParams
from plinth.records import Manifest

NAME = ANNOTATOR.name


@dataclass(frozen=True)
class PiiDetector:
    """The annotator with parameters.

    Args:
        given: the recipe's parameters of the annotator `pii`; empty where it has none.
        resources: the list that is the recipe's spaCy pipeline, where one is named.
    """

    given: Mapping[str, Any]
    resources: Mapping[str, Manifest]

    @cached_property
    def params(self) -> PiiParams:
        """The recipe's parameters, with every kind of `DEFAULT_KINDS` added.

        Raises:
            RecipeError: an unknown parameter.
        """
        own = annotate.parameters(NAME, self.given)
        assert isinstance(own, PiiParams)
        kinds = {*DEFAULT_KINDS, *own.kinds}
        return own.model_copy(update={"kinds": tuple(kind for kind in KINDS if kind in kinds), "replacements": {}})

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds that are looked for, in the order of the annotator's columns."""
        return (*self.params.kinds, *(NAMED if self.params.ner else ()))

    @property
    def written(self) -> frozenset[str]:
        """What the recipe writes instead of personal data: a replacement may look like an address, and is none."""
        return frozenset(self.given.get("replacements", {}).values())

    @property
    def facts(self) -> dict[str, Any]:
        """Annotator, version, parameters and libraries: everything that decides what is found."""
        params = self.params.model_dump(mode="json")
        return {"annotator": NAME, "version": ANNOTATOR.version, "params": params, "libraries": self.libraries}

    @property
    def libraries(self) -> dict[str, str]:
        """Versions of other people's code that decide what is found."""
        return annotate.libraries(NAME, self.params.model_dump(mode="json"))

    def scan(self, ctx: Context, bucket: str, documents: Manifest) -> Manifest:
        """The annotator's sidecar of some documents, out of the step cache where it knows their parts."""
        params = self.params.model_dump(mode="json")
        return annotate.run(ctx, bucket, NAME, params, documents, self.resources)


def needs(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of the assets that the detector reads with a recipe's parameters."""
    return ANNOTATOR.needs(annotate.parameters(NAME, given))
