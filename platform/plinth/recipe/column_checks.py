"""Checks of a recipe against the annotators: names, parameters, and the columns of policies; warnings about legal but
probably mistaken settings; checks of the user's list and probe files.

The annotators and the policy language load compiled kernels, so they are imported only when a recipe is checked.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from plinth.errors import PlinthError, RecipeError
from plinth.recipe.extension_checks import (
    Found,
    nearest,
    problems_of_evidence,
    problems_of_gates,
    problems_of_member,
    retired,
    settable,
)
from plinth.recipe.recipe import Recipe
from plinth.recipe.yaml_lines import Key
from plinth.storage.parts import EDIT_TYPE

if TYPE_CHECKING:
    from plinth.corpus.annotate.base import Annotator
    from plinth.extensions import Catalogue

#: Annotators that every recipe needs, since slices and gates read their columns.
REQUIRED = {
    "language": "evaluation and the tokenizer audit slice text by language",
    "licence": "the ledger needs normalized licenses",
}

WHERE = "rule"


def problems_of_columns(data: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the problems in the corpus section of a recipe that is given as plain data."""
    corpus = data.get("corpus")
    if not isinstance(corpus, dict):
        return
    from plinth.corpus.annotate.base import ANNOTATORS

    chosen = corpus.get("annotate")
    if isinstance(chosen, dict):
        known: dict[str, Annotator] = {}
        for name, given in chosen.items():
            yield from problems_of_member(("corpus", "annotate", name), name, given, ANNOTATORS)
            with suppress(RecipeError):
                known[name] = ANNOTATORS.find(name)
            yield from _resources(corpus, name, given, known)
        meant = {name: chosen.get(name) for name in _meant(chosen, known, ANNOTATORS)}
        for name, why in REQUIRED.items():
            if name not in meant:
                yield ("corpus", "annotate"), f"`{name}` is missing", why
        yield from _policies(corpus, meant)
        yield from problems_of_gates(corpus, meant)
        if not data.get("test"):
            yield from problems_of_evidence(corpus)
        yield from _axes(data.get("shards"), meant)
        yield from _slices(data.get("evaluation"), meant)
    yield from _models(corpus)
    yield from _extraction_model(corpus)
    yield from _terms(corpus)
    yield from _dedup(corpus)
    yield from _illegal(corpus)


def _meant(chosen: Iterable[str], known: Mapping[str, Any], names: Catalogue[Any]) -> list[str]:
    """Return the annotators in a recipe. A misspelled name is replaced by the closest known name, so that it causes no
    further problems."""
    unknown = {name: difflib.get_close_matches(name, names.built_in, n=1) for name in chosen if name not in names}
    near = (name if name in known else next(iter(unknown.get(name, ())), None) for name in chosen)
    return list(dict.fromkeys(name for name in near if name is not None))


def _resources(corpus: Mapping[str, Any], name: str, given: Any, known: Mapping[str, Annotator]) -> Iterator[Found]:
    """Check that the recipe has every model and list that an annotator needs."""
    if name not in known:
        return
    try:
        params = known[name].params.model_validate(given or {})
    except ValidationError:
        return  # reported by `_annotator`
    endpoint, have = getattr(params, "endpoint", None), corpus.get("endpoints") or {}
    if endpoint is not None and endpoint not in have:
        yield ("corpus", "annotate", name, "endpoint"), f"there is no endpoint {endpoint!r}", nearest(endpoint, have)
    for key in known[name].needs(params):
        kind, _, resource = key.partition("/")
        have = corpus.get(kind) or {}
        if resource not in have:
            yield (
                ("corpus", "annotate", name),
                f"needs {key}, which `corpus.{kind}` does not have",
                nearest(resource, have),
            )


def _models(corpus: Mapping[str, Any]) -> Iterator[Found]:
    """Check that the buckets and lists on which models are trained exist."""
    from plinth.corpus.models import parameters, trainer

    models, buckets, lists = corpus.get("models") or {}, corpus.get("buckets") or {}, corpus.get("lists") or {}
    for name, raw in models.items() if isinstance(models, dict) else ():
        at: Key = ("corpus", "models", name)
        try:
            chosen, params = trainer(name, raw if isinstance(raw, dict) else {}), parameters(name, raw)
        except RecipeError as error:
            yield at, error.what.removeprefix(f"corpus.models.{name}: "), error.remedy or f"have: {error.expected}"
            continue
        yield from retired(chosen.params, {key: value for key, value in raw.items() if key != "kind"}, at)
        read = [one.partition("/")[2] for one in chosen.sidecars(params)]
        for what, wanted, have in (
            ("bucket", chosen.buckets(params), buckets),
            ("list", chosen.lists(params), lists),
            ("annotator", dict.fromkeys(read), corpus.get("annotate") or {}),
        ):
            for one in wanted:
                if one not in have:
                    yield at, f"there is no {what} {one!r}", nearest(one, have)


def _extraction_model(corpus: Mapping[str, Any]) -> Iterator[Found]:
    """Check that the buckets exist whose pages the model of the extraction learns, and that they have files."""
    from plinth.corpus.documents.extraction_model import ASSET
    from plinth.corpus.sources.files import WRITTEN_KINDS

    documents, buckets = corpus.get("documents"), corpus.get("buckets") or {}
    learned = documents.get("extraction_model") if isinstance(documents, dict) else None
    if not isinstance(learned, dict):
        return
    at: Key = ("corpus", "documents", "extraction_model")
    if ASSET in {f"models/{name}" for name in corpus.get("models") or ()}:
        yield at, f"a model in `corpus.models` has the name of the asset {ASSET}", "give that model another name"
    named = learned.get("buckets")
    for name in map(str, named if isinstance(named, list) else ()):
        sources = (buckets.get(name) or {}).get("sources")
        if name not in buckets:
            yield (*at, "buckets"), f"there is no bucket {name!r}", nearest(name, buckets)
        elif any(source.get("kind") in WRITTEN_KINDS for source in sources or () if isinstance(source, dict)):
            yield (*at, "buckets"), f"{name} has no pages, because a model writes it", "name buckets with pages"


def _dedup(corpus: Mapping[str, Any]) -> Iterator[Found]:
    """Check that the buckets and lists that later deduplication stages use exist."""
    dedup, buckets = corpus.get("dedup") or {}, corpus.get("buckets") or {}
    for stage, field in (("semantic", "buckets"), ("lines", "exclude"), ("substring", "exclude")):
        named = (dedup.get(stage) or {}).get(field) if isinstance(dedup, dict) else None
        for index, name in enumerate(named if isinstance(named, list) else ()):
            if name not in buckets:
                at: Key = ("corpus", "dedup", stage, field, index)
                yield at, f"there is no bucket {name!r}", nearest(str(name), buckets)
    vectors = (dedup.get("semantic") or {}).get("vectors") if isinstance(dedup, dict) else None
    lists = corpus.get("lists") or {}
    if vectors is not None and vectors not in lists:
        yield ("corpus", "dedup", "semantic", "vectors"), f"there is no list {vectors!r}", nearest(str(vectors), lists)


def _illegal(corpus: Mapping[str, Any]) -> Iterator[Found]:
    """Check that the lists that the illegal-content gate uses exist."""
    gate, lists = corpus.get("illegal"), corpus.get("lists") or {}
    name = gate.get("lists") if isinstance(gate, dict) else None
    if name is not None and name not in lists:
        yield ("corpus", "illegal", "lists"), f"there is no list {name!r}", nearest(str(name), lists)


def _terms(corpus: Mapping[str, Any]) -> Iterator[Found]:
    """Check that the terms of every source allow all uses in `corpus.uses`."""
    uses, buckets = corpus.get("uses") or (), corpus.get("buckets")
    for name, bucket in buckets.items() if isinstance(buckets, dict) else ():
        sources = bucket.get("sources") if isinstance(bucket, dict) else None
        for index, source in enumerate(sources if isinstance(sources, list) else ()):
            terms = source.get("terms") if isinstance(source, dict) else None
            for use in uses:
                if isinstance(terms, dict) and terms.get(use) is False:
                    at: Key = ("corpus", "buckets", name, "sources", index, "terms", use)
                    yield (
                        at,
                        f"`corpus.uses` includes {use}, which the owner's terms forbid",
                        "remove the source",
                    )


def _policies(corpus: Mapping[str, Any], chosen: Mapping[str, Any]) -> Iterator[Found]:
    """Check that every expression parses and names existing columns."""
    from plinth.corpus.annotate.base import available
    from plinth.corpus.policy.compiled_policy import columns_of

    types = columns_of(available(chosen))
    policies = corpus.get("policies")
    for name, policy in policies.items() if isinstance(policies, dict) else ():
        if isinstance(policy, dict):
            yield from _profiles(("corpus", "policies", name, "profiles"), policy.get("profiles"), corpus, chosen)
            yield from _rules(("corpus", "policies", name, "rules"), policy.get("rules"), types)
            yield from _edits(("corpus", "policies", name, "edits"), policy.get("edits"), types)


def _profiles(at: Key, names: Any, corpus: Mapping[str, Any], chosen: Mapping[str, Any]) -> Iterator[Found]:
    """Check that every annotator that a policy profile needs is in the recipe with the required parameters."""
    from plinth.corpus.annotate.base import annotator
    from plinth.corpus.policy.profiles import PROFILES

    for index, name in enumerate(names if isinstance(names, list) else ()):
        known = PROFILES.get(name) if isinstance(name, str) else None
        for needed, wanted in known.annotators.items() if known else ():
            if needed not in chosen:
                given = {key: value for key, value in wanted.items() if key in settable(annotator(needed).params)}
                flow = ", ".join(f"{key}: {json.dumps(value)}" for key, value in given.items())
                hint = f"add `{needed}: {{{flow}}}` to corpus.annotate"
                yield (*at, index), f"{name} needs the annotator `{needed}`, which is not in `corpus.annotate`", hint
            else:
                yield from _counting((*at, index), name, needed, wanted, corpus["annotate"][needed])


def _counting(at: Key, name: str, needed: str, wanted: Mapping[str, Any], given: Any) -> Iterator[Found]:
    from plinth.corpus.annotate.base import annotator

    try:
        params = annotator(needed).params.model_validate(given or {})
    except ValidationError:
        return  # reported by `_annotator`
    for key, value in wanted.items():
        found = getattr(params, key)
        if found != value:
            hint = f"write `{key}: {json.dumps(value)}`, or write your own rules"
            yield at, f"{name} needs `corpus.annotate.{needed}.{key}` = {value!r}, found {found!r}", hint


def _rules(at: Key, rules: Any, types: Mapping[str, Any]) -> Iterator[Found]:
    from plinth.corpus.policy.expressions import parse

    seen: set[str] = set()
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        if not isinstance(rule, dict):
            continue
        reason, drop = rule.get("reason"), rule.get("drop")
        if isinstance(reason, str) and reason in seen:
            yield (*at, index, "reason"), f"more than one rule has the reason {reason!r}", "use unique reasons"
        seen.add(str(reason))
        if isinstance(drop, str):
            try:
                parse(drop, types, WHERE)
            except RecipeError as error:
                hint = error.remedy or (f"expected {error.expected}" if error.expected else "")
                yield (*at, index, "drop"), error.what.removeprefix(f"{WHERE}: "), hint


def _axes(shards: Any, chosen: Mapping[str, Any]) -> Iterator[Found]:
    """Check that every column that divides shards is written by an annotator of the recipe."""
    from plinth.corpus.annotate.base import available
    from plinth.corpus.policy.compiled_policy import columns_of
    from plinth.tokens.shards.parameters import AXES

    axes = shards.get("axes") if isinstance(shards, dict) else None
    types = columns_of(available(chosen))
    for index, axis in enumerate(axes if isinstance(axes, list) else ()):
        column = AXES.get(axis, axis) if isinstance(axis, str) else None
        if column is not None and column not in types:
            hint = f"add `{column.split('.')[0]}: {{}}` to corpus.annotate" if axis in AXES else nearest(column, types)
            yield ("shards", "axes", index), f"axis {axis} needs the column {column}, which no annotator writes", hint


def _slices(evaluation: Any, chosen: Mapping[str, Any]) -> Iterator[Found]:
    """Check that every evaluation slice reads existing columns.

    Slices with columns of other stages are not checked, because these columns exist only in the ledger.
    """
    from plinth.corpus.annotate.base import available
    from plinth.corpus.policy.compiled_policy import columns_of
    from plinth.evaluation.slices.choice import as_in_ledger, from_other_stages, read

    slices = evaluation.get("slices") if isinstance(evaluation, dict) else None
    types = as_in_ledger(columns_of(available(chosen)))
    for name, text in slices.items() if isinstance(slices, dict) else ():
        if isinstance(text, str) and not from_other_stages(text, tuple(chosen)):
            try:
                read(text, types, WHERE)
            except RecipeError as error:
                hint = error.remedy or (f"expected {error.expected}" if error.expected else "")
                yield ("evaluation", "slices", name), error.what.removeprefix(f"{WHERE}: "), hint


def _edits(at: Key, edits: Any, types: Mapping[str, Any]) -> Iterator[Found]:
    spans = [name for name, kind in types.items() if kind == EDIT_TYPE]
    for index, edit in enumerate(edits if isinstance(edits, list) else ()):
        column = edit.get("spans") if isinstance(edit, dict) else None
        if isinstance(column, str) and column not in spans:
            yield (*at, index, "spans"), f"{column!r} is not a span column", nearest(column, spans)


# Warnings, and checks of files.

PER_DOCUMENT = "per-document"


def notes(recipe: Recipe) -> list[str]:
    """Return warnings about legal but probably mistaken settings, as sentences. Each warning is about one key."""
    return [*_test(recipe), *_licences(recipe), *_never(recipe), *_scripts(recipe)]


def _test(recipe: Recipe) -> Iterator[str]:
    if recipe.test:
        yield "test: this is a test recipe; generated labeled sets and unmeasured learned gates are allowed"


def _never(recipe: Recipe) -> Iterator[str]:
    """Warn about intervals longer than the run."""
    from plinth.tokens.order.steps import schedule

    training, mixture = recipe.training, recipe.mixture
    if mixture is None:
        return
    changes = (training.batch_schedule, training.length_schedule, training.amendments)
    sequences = mixture.total_tokens // mixture.sequence_tokens
    total = schedule(sequences, mixture.sequence_tokens, training.global_batch_sequences, *changes).total
    guard, looks = training.guard, training.validation
    guarded = guard.enabled and training.trainer is None
    seldom = [
        ("guard.window_steps / 4", guard.min_steps if guarded else 0, "the guard never becomes active"),
        ("validation.every_steps", looks.every_steps if looks else 0, "held-out slices are only measured at the end"),
        ("checkpoints.every_steps", training.checkpoints.every_steps, "nothing is saved before the end"),
    ]
    for key, steps, so in seldom:
        if steps >= total:
            yield f"training.{key}: {steps:,}, but the run has {total:,} steps: {so}"


def _scripts(recipe: Recipe) -> Iterator[str]:
    """Warn about relative paths in the command of an external trainer."""
    for word in recipe.training.trainer.command if recipe.training.trainer else ():
        if not word.startswith(("/", "-")) and ("/" in word or word.endswith((".py", ".sh"))):
            yield (
                f"training.trainer.command: {word} is a relative path, but the command starts in an empty folder; "
                "write the absolute path"
            )


def _licences(recipe: Recipe) -> Iterator[str]:
    """Warn about sources for which the license gate drops every document."""
    from plinth.corpus.annotate.licence import judge

    permitted = tuple(sorted(recipe.corpus.permitted_licences))
    for name, bucket in recipe.corpus.buckets.items():
        for index, source in enumerate(bucket.sources):
            if source.licence != PER_DOCUMENT and not judge(source.licence, permitted)[1]:
                yield (
                    f"corpus.buckets.{name}.sources[{index}].licence: {source.licence} is not in "
                    "`corpus.permitted_licences`, so the license gate drops every document of this source"
                )


#: Larger lists are skipped: reading them takes longer than a person waits for a check.
MAX_BYTES = 32 * 2**20


def list_files(recipe: Recipe, folder: Path) -> Iterator[tuple[Key, str, str]]:
    """Yield key, problem and hint for each list that an annotator or the illegal-content gate cannot read.

    Args:
        folder: root of relative paths. Missing files are skipped, because the run reports them.
    """
    from plinth.corpus import illegal
    from plinth.corpus.annotate.base import annotator

    corpus, faults = recipe.corpus, dict[Key, tuple[str, str]]()
    for name, raw in corpus.annotate.items():
        chosen = annotator(name)
        params = chosen.params.model_validate(raw)
        files = _files(corpus.lists.get(getattr(params, "lists", "")), folder)
        if files and chosen.prepare is not None:
            try:
                chosen.prepare(params, {f"lists/{params.lists}": files})  # type: ignore[attr-defined]
            except PlinthError as error:
                faults[("corpus", "lists", params.lists)] = _words(error)  # type: ignore[attr-defined]
    gate = corpus.illegal
    if gate.lists is not None and (files := _files(corpus.lists.get(gate.lists), folder)):
        try:
            illegal.read(files, f"lists/{gate.lists}", gate)
        except PlinthError as error:
            faults[("corpus", "lists", gate.lists)] = _words(error)
    yield from ((key, *words) for key, words in faults.items())


def _files(location: str | None, folder: Path) -> dict[str, Path]:
    """Return the files of a list by their names in the run, or no files if the list is remote or too large."""
    if location is None or "://" in location or not (place := folder / location).exists():
        return {}
    found = [place] if place.is_file() else sorted(one for one in place.rglob("*") if one.is_file())
    if sum(one.stat().st_size for one in found) > MAX_BYTES:
        return {}
    return {one.name if place.is_file() else one.relative_to(place).as_posix(): one for one in found}


def _words(error: PlinthError) -> tuple[str, str]:
    return error.brief, f"expected {error.expected}" if error.expected else error.remedy or ""


def probe_files(recipe: Recipe, folder: Path) -> Iterator[tuple[Key, str, str]]:
    """Yield key, problem and hint for each probe file with too many bad lines, or with fewer items than few-shot
    examples.

    Args:
        folder: root of relative paths. Missing files are skipped, because the run reports them.
    """
    from plinth.evaluation.probes import probe_sets

    for name, given in recipe.evaluation.probes.sets.items():
        data = None
        with suppress(OSError):
            data = (folder / given.path).read_bytes()
        if data is None:
            continue
        try:
            probe_sets.read(name, given, data)
        except PlinthError as error:
            yield ("evaluation", "probes", "sets", name), error.brief, error.remedy or ""
