"""Checks of what a recipe names from a catalogue: the member exists, can be used, and takes the parameters given."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from plinth.errors import ExtensionError, RecipeError
from plinth.extensions import Catalogue
from plinth.recipe.retired import retired, settable
from plinth.recipe.yaml_lines import Key

#: Where, what, and a hint.
Found = tuple[Key, str, str]


def problems_of_extensions(data: Mapping[str, Any]) -> Iterator[Found]:
    """Members of installed packages that cannot be used, and parameters that they do not take."""
    from plinth.corpus.sources.readers import READERS
    from plinth.evaluation.measurement import MEASUREMENTS
    from plinth.evaluation.probes.registry import PROBES
    from plinth.launch.base import LAUNCHERS
    from plinth.training.hooks import HOOKS
    from plinth.training.parameters.optimizers import OPTIMIZERS

    for at, source in _sources(data):
        yield from _chosen(at, source, READERS)
    launch = _inside(data, "training", "launch")
    if isinstance(launch, dict):
        yield from _chosen(("training", "launch"), launch, LAUNCHERS)
    optimizer = _inside(data, "training", "optimizer")
    if isinstance(optimizer, dict):
        yield from _chosen(("training", "optimizer"), optimizer, OPTIMIZERS)
    catalogues: dict[str, Catalogue[Any]] = {"evaluation": MEASUREMENTS, "training": HOOKS}
    for section, catalogue in catalogues.items():
        asked = _inside(data, section, "extensions")
        for name, given in asked.items() if isinstance(asked, dict) else ():
            at = (section, "extensions", name)
            if name in catalogue.built_in:
                key = f"training.{name}" if catalogue is HOOKS else MEASUREMENTS[name].key
                yield at, "has a key of its own", f"set `{key}`" if key else ""
            else:
                yield from problems_of_member(at, name, given, catalogue)
    probes = _inside(data, "evaluation", "probes", "families")
    for index, name in enumerate(probes if isinstance(probes, list) else ()):
        if isinstance(name, str) and name not in PROBES.built_in:
            yield from _unusable(("evaluation", "probes", "families", index), name, PROBES)


def problems_of_member(at: Key, name: str, given: Any, catalogue: Catalogue[Any], whose: Key = ()) -> Iterator[Found]:
    """What is wrong with a name at a key, or with the parameters given beside or below it.

    Args:
        whose: the key of the parameters; the same as `at` where it is empty.
    """
    unusable = list(_unusable(at, name, catalogue))
    if unusable:
        yield from unusable
        return
    model, below = catalogue.find(name).params, whose or at
    yield from retired(model, given, below)
    for parameter in given if isinstance(given, dict) else ():
        if parameter not in model.model_fields:
            yield (*below, parameter), "unknown parameter", nearest(parameter, settable(model))
    try:
        model.model_validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] != "extra_forbidden":
                yield (*below, *detail["loc"]), f"{detail['msg'][0].lower()}{detail['msg'][1:]}", ""


def _unusable(at: Key, name: str, catalogue: Catalogue[Any]) -> Iterator[Found]:
    """A name that no member has, or whose member cannot be used."""
    try:
        catalogue.find(name)
    except ExtensionError as error:
        yield at, error.brief, error.remedy or ""
    except RecipeError:
        found = "" if at[-1] == name else f"found {json.dumps(name)}, "
        yield at, f"{found}no such {catalogue.noun}", nearest(name, catalogue)


def _chosen(at: Key, given: Mapping[str, Any], catalogue: Catalogue[Any]) -> Iterator[Found]:
    """A block with `kind` and, for a member of an installed package, `options`."""
    kind, options = given.get("kind"), given.get("options", {})
    if not isinstance(kind, str):
        return  # its default, or refused by the recipe's own validation
    if kind in catalogue.built_in and not options:
        return  # nothing to import
    yield from problems_of_member((*at, "kind"), kind, options, catalogue, (*at, "options"))


def _sources(data: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    buckets = _inside(data, "corpus", "buckets")
    for name, bucket in buckets.items() if isinstance(buckets, dict) else ():
        sources = bucket.get("sources") if isinstance(bucket, dict) else None
        for index, source in enumerate(sources if isinstance(sources, list) else ()):
            if isinstance(source, dict):
                yield ("corpus", "buckets", name, "sources", index), source


def _inside(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else f"have: {', '.join(known)}" if known else "there are none"
