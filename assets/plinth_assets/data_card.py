"""`data_card`: the text by bucket, and what it was screened for; what was not says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context, manifest
from plinth.corpus.annotate.base import REPEATED
from plinth.corpus.policy.compiled_policy import compile_policy
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.protected import comparison, protected
from plinth.corpus.slices import removal_rates
from plinth.corpus.slices.measured_gates import MEASURED_GATES
from plinth.corpus.slices.rates import percent
from plinth.corpus.slices.removal_rates import models_of
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.report.data_card import CardBucket, Screening, card
from plinth_assets.framework.inputs import by_bucket, compares, each, shared_owner
from plinth_assets.framework.present import markdown
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.removal_rates import reference_of, rules_in_use

ASSET, VERSION, FILE = "data_card", "3", "data_card.md"
#: What people ask of a corpus, and the annotators whose columns rules or edits read for it.
SUBJECTS = {
    "opt-outs": ("opt_out",),
    "toxicity": ("toxicity", *(f"{name}_toxicity" for name in REPEATED)),
    "personal data": ("pii",),
    "learned quality": ("quality_classifier", *(f"{name}_quality" for name in REPEATED)),
}


def stages(recipe: Recipe) -> list[Stage]:
    """One card of the whole corpus."""
    measured = [removal_rates.ASSET] if rules_in_use(recipe) else []
    gates = [f"slices/{name}" for name in recipe.corpus.slices]
    compared = [protected.ASSET] if compares(recipe) else []
    corpus = recipe.corpus.model_dump(mode="json", include={"policies", "buckets", "permitted_licences", "uses"})
    return [
        Stage(
            asset=ASSET,
            deps=(*each(recipe, "documents", "curated"), *gates, *measured, *compared),
            make=partial(_make, recipe),
            version=VERSION,
            params={
                "name": recipe.name,
                "description": recipe.description,
                "test": recipe.test,
                "corpus": corpus,
                "illegal": recipe.corpus.illegal.lists,
                "reference": list(reference_of(recipe)),
            },
            group="report",
            description="Text by bucket and what it was screened for, in Markdown.",
            owner=shared_owner(recipe),
            present=lambda ctx, made: {"card": markdown(text_of(ctx, made))},
        )
    ]


def text_of(ctx: Context, made: Manifest) -> str:
    """The card's page."""
    return ctx.store.read_bytes(made.parts[0].blob).decode()


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    screenings = list(_screenings(recipe, inputs))
    page = card(recipe.name, recipe.description, list(_buckets(recipe, inputs)), screenings, recipe.test)
    part = Part(name=FILE, blob=ctx.store.put_bytes(page.encode()))
    states = {one.subject: one.state(list(recipe.corpus.buckets)) for one in screenings}
    stats = {"name": recipe.name, "screening": states}
    return manifest(ASSET, Step(name=ASSET, version=VERSION), dict(inputs), [part], stats)


def _buckets(recipe: Recipe, inputs: Inputs) -> Iterator[CardBucket]:
    documents, curated = by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "curated")
    for name, bucket in recipe.corpus.buckets.items():
        stats = curated[name].stats
        licences = tuple(dict.fromkeys(source.licence for source in bucket.sources))
        counts = (documents[name].stats["documents"], stats["documents"], stats["text_bytes"])
        yield CardBucket(name, bucket.description, licences, *counts)


def _screenings(recipe: Recipe, inputs: Inputs) -> Iterator[Screening]:
    corpus, buckets = recipe.corpus, tuple(recipe.corpus.buckets)
    uses = " and ".join(("training", *corpus.uses))
    yield Screening("licences and terms", dict.fromkeys(buckets, (f"permitted for {uses}",)), ("enforced",))
    lists = (f"lists/{corpus.illegal.lists}",) if corpus.illegal.lists else ()
    yield Screening("illegal content", dict.fromkeys(buckets, lists))
    probes = recipe.probes.names if recipe.probes else ()
    sets = tuple(f"items of {name}" for name in (*corpus.protected.sets, *(f"probes/{name}" for name in probes)))
    yield Screening("protected sets", dict.fromkeys(buckets, sets), tuple(_items(inputs)))
    policies = {name: corpus.policies[bucket.policy] for name, bucket in corpus.buckets.items()}
    known = {name for own in SUBJECTS.values() for name in own}
    ready = [name for name in corpus.annotate if name.partition("_")[0] in REPEATED and name not in known]
    for subject, own in {**SUBJECTS, **{f"ready model `{name}`": (name,) for name in ready}}.items():
        rules = {name: tuple(_rules(policy, tuple(corpus.annotate), own)) for name, policy in policies.items()}
        evidence = (one for name in own for one in _evidence(recipe, inputs, name)) if any(rules.values()) else ()
        yield Screening(subject, rules, tuple(dict.fromkeys(evidence)))


def _items(inputs: Inputs) -> Iterator[str]:
    """Items of each protected set by what is known of them; those of common text by name."""
    made = inputs.get(protected.ASSET)
    for name, own in made.stats["sets"].items() if made is not None else ():
        counts = ", ".join(f"{own[status]} {status}" for status in comparison.STATUSES)
        common = f" (common text: {', '.join(own['common'])})" if own["common"] else ""
        yield f"{name}, {own['items']} items: {counts}{common}"


def _rules(policy: Policy, annotators: tuple[str, ...], named: tuple[str, ...]) -> Iterator[str]:
    """Rules and edits of a policy that read the columns of some annotators."""
    compiled, own = compile_policy(policy, annotators), tuple(f"{name}." for name in named)
    yield from (rule.text for _, rule in compiled.rules if any(name.startswith(own) for name in rule.columns))
    yield from (f"{column} replaced" for _, column in compiled.edits if column.startswith(own))


def _evidence(recipe: Recipe, inputs: Inputs, annotator: str) -> Iterator[str]:
    """Error rates on labelled text, digests of ready models, and removal rates on text that is trusted."""
    gates = [gate.name for gate in MEASURED_GATES.values() if gate.annotator == annotator]
    for gate in gates:
        made = inputs.get(f"slices/{gate}")
        if made is not None:
            yield from _rates(gate, made.stats)
    for model in models_of(annotator, recipe.corpus.annotate[annotator]) if annotator in recipe.corpus.annotate else ():
        sha256 = recipe.corpus.models[model].get("sha256")
        if sha256:
            yield f"ready model {model}, sha256 {sha256[:12]}"
    measured = inputs.get(removal_rates.ASSET)
    reading = {rule.expression.text for rule in rules_in_use(recipe) if annotator in rule.annotators}
    for row in measured.stats["rules"] if measured is not None else ():
        if row["rule"] in reading:
            for bucket in reference_of(recipe):
                yield f"removes of {bucket}: {removal_rates.in_words(row['buckets'][bucket])}"


def _rates(gate: str, stats: Mapping[str, Any]) -> Iterator[str]:
    row, real = stats["slices"].get("all"), sum(stats["real"].values())
    if row is None:
        return
    kind = f"{real:,} labelled documents" if real else "generated text alone, which is no evidence"
    yield f"{gate} on {kind}: recall {percent(row['recall'])}, false positives {percent(row['false_positive'])}"
