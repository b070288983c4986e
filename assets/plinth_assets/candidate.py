"""Last stages of the pipeline: `data_card`, `evaluation_page`, `candidate` and `release`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.corpus import curate
from plinth.corpus.annotate.base import REPEATED, Available, available
from plinth.corpus.policy.compiled_policy import compile_policy
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.protected import comparison, protected
from plinth.corpus.slices import removal_rates
from plinth.corpus.slices.measured_gates import MEASURED_GATES
from plinth.corpus.slices.rates import percent
from plinth.corpus.slices.removal_rates import models_of
from plinth.errors import GateError
from plinth.evaluation.measurement import Stats, measurements
from plinth.evaluation.probes.noise import Worth
from plinth.operation import settlement
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.report.evaluation import CurveGroup, EvaluationData, Section, StepCurve
from plinth.report.page import CardBucket, Fact, Next, Screening, card
from plinth.storage.atomic import write_bytes
from plinth.training import config, manifests
from plinth.training.telemetry.timeline import timeline
from plinth.training.validation import probe_curves
from plinth_assets.framework import Inputs, Say, Stage, by_bucket, compares, each, shared_owner
from plinth_assets.framework.present import markdown, page_value, table
from plinth_assets.measurements import comparison_stage
from plinth_assets.verdicts import reference_of, rules_in_use
from plinth_registry import api, candidate, decisions
from plinth_registry.gates import blocking, summary
from plinth_registry.gates.facts import GrantedUses

# `data_card` and `evaluation_page`: the text by bucket with the screening applied or not applied; and all measurements
# of the checkpoint on one self-contained page.

CARD, CARD_VERSION, CARD_FILE = "data_card", "3", "data_card.md"
#: Screening subjects, with the annotators whose columns rules or edits use.
SUBJECTS = {
    "opt-outs": ("opt_out",),
    "toxicity": ("toxicity", *(f"{name}_toxicity" for name in REPEATED)),
    "personal data": ("pii",),
    "learned quality": ("quality_classifier", *(f"{name}_quality" for name in REPEATED)),
}


def card_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that writes the data card of the whole corpus."""
    measured = [removal_rates.ASSET] if rules_in_use(recipe) else []
    gates = [f"slices/{name}" for name in recipe.corpus.slices]
    compared = [protected.ASSET] if compares(recipe) else []
    corpus = recipe.corpus.model_dump(mode="json", include={"policies", "buckets", "permitted_licences", "uses"})
    return [
        Stage(
            asset=CARD,
            deps=(*each(recipe, "documents", "curated"), *gates, *measured, *compared),
            make=partial(_make_card, recipe),
            version=CARD_VERSION,
            params={
                "name": recipe.name,
                "description": recipe.description,
                "test": recipe.test,
                "corpus": corpus,
                "illegal": recipe.corpus.illegal.lists,
                "reference": list(reference_of(recipe)),
            },
            group="report",
            description="Data card in Markdown: the amount of text in each bucket, and the filters that were applied "
            "to it.",
            owner=shared_owner(recipe),
            present=lambda ctx, made: {"card": markdown(card_text(ctx, made))},
        )
    ]


def card_text(ctx: Context, made: Manifest) -> str:
    """Return the Markdown text of the data card."""
    return ctx.store.read_bytes(made.parts[0].blob).decode()


def _make_card(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    screenings = list(_screenings(recipe, inputs))
    page = card(recipe.name, recipe.description, list(_buckets(recipe, inputs)), screenings, recipe.test)
    part = Part(name=CARD_FILE, blob=ctx.store.put_bytes(page.encode()))
    states = {one.subject: one.state(list(recipe.corpus.buckets)) for one in screenings}
    stats = {"name": recipe.name, "screening": states}
    return manifest(CARD, Step(name=CARD, version=CARD_VERSION), dict(inputs), [part], stats)


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
    yield Screening("protected sets", dict.fromkeys(buckets, sets), tuple(_card_items(inputs)))
    policies = {name: corpus.policies[bucket.policy] for name, bucket in corpus.buckets.items()}
    known = {name for own in SUBJECTS.values() for name in own}
    ready = [name for name in corpus.annotate if name.partition("_")[0] in REPEATED and name not in known]
    for subject, own in {**SUBJECTS, **{f"ready model `{name}`": (name,) for name in ready}}.items():
        rules = {name: tuple(_rules(policy, available(corpus.annotate), own)) for name, policy in policies.items()}
        evidence = (one for name in own for one in _card_evidence(recipe, inputs, name)) if any(rules.values()) else ()
        yield Screening(subject, rules, tuple(dict.fromkeys(evidence)))


def _card_items(inputs: Inputs) -> Iterator[str]:
    """Yield one line per protected set, with the number of its items by contamination status and the names of its items
    that are common text."""
    made = inputs.get(protected.ASSET)
    for name, own in made.stats["sets"].items() if made is not None else ():
        counts = ", ".join(f"{own[status]} {status}" for status in comparison.STATUSES)
        common = f" (common text: {', '.join(own['common'])})" if own["common"] else ""
        yield f"{name}, {own['items']} items: {counts}{common}"


def _rules(policy: Policy, annotators: tuple[Available, ...], named: tuple[str, ...]) -> Iterator[str]:
    """Yield the rules and edits of a policy that read columns of the named annotators."""
    compiled, own = compile_policy(policy, annotators), tuple(f"{name}." for name in named)
    yield from (rule.text for _, rule in compiled.rules if any(name.startswith(own) for name in rule.columns))
    yield from (f"{column} replaced" for _, column in compiled.edits if column.startswith(own))


def _card_evidence(recipe: Recipe, inputs: Inputs, annotator: str) -> Iterator[str]:
    """Yield the data card's evidence for an annotator: error rates on labeled text, digests of pretrained models, and
    removal rates on trusted text."""
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


EVALUATION_PAGE, PAGE_VERSION, PAGE_FILE = "evaluation_page", "3", "evaluation.html"


def page_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that writes the evaluation page of the checkpoint."""
    return [
        Stage(
            asset=EVALUATION_PAGE,
            deps=(
                "run",
                *(asset for asset, _ in _measured(recipe)),
                *(one.asset for one in comparison_stage.stages(recipe)),
            ),
            make=partial(_make_page, recipe),
            version=PAGE_VERSION,
            params={"name": recipe.name, "description": recipe.description},
            group="report",
            description="One page with all measurements of the checkpoint, with their intervals, controls and noise.",
            owner=shared_owner(recipe),
            kinds=("html",),
            present=partial(_present, recipe),
        )
    ]


def page_path(ctx: Context, recipe: Recipe, checkpoint: str) -> Path:
    """Return the path of the evaluation page of the checkpoint with this digest."""
    return ctx.workspace.reports / f"{recipe.name}-checkpoint-{checkpoint[:12]}-evaluation.html"


def show_page(ctx: Context, recipe: Recipe, made: Manifest) -> Path:
    """Write the evaluation page to the workspace's folder of pages, and return the path of its file."""
    target = page_path(ctx, recipe, made.stats["checkpoint"])
    write_bytes(target, ctx.store.read_bytes(made.parts[0].blob))
    return target


def _measured(recipe: Recipe) -> Iterator[tuple[str, Callable[[str, Stats], Any]]]:
    """Yield each measurement asset that has a section on the evaluation page, with the function that builds the
    section."""
    for one in measurements(recipe):
        if one.section:
            yield from ((stage.asset, one.section) for stage in one.stages(recipe) if one.has(stage.asset))


def _make_page(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    from plinth.report.evaluation import page
    from plinth_assets.measurements.probes_stage import with_worth

    steps, checkpoint = inputs["run"].stats["steps"], inputs["evaluation"].inputs["checkpoint"]
    run = config.load(ctx.workspace.runs / inputs["run"].stats["run_id"] / "config.json")
    looks = timeline(run.directory.events).of("evaluated")
    worth = {name: probe_curves.value(own) for name, own in probe_curves.curves(looks).items()}
    found = [section(asset.partition("/")[2], inputs[asset].stats) for asset, section in _measured(recipe)]
    beside = inputs.get(comparison_stage.ASSET)
    if beside and beside.stats["lines"]:
        from plinth.report.evaluation import section as compared

        found.append(compared(beside.stats, recipe.evaluation.against))
    shown = [with_worth(one, worth) if one.key == "probes" else one for one in found]
    text = page(
        EvaluationData(
            title=f"{recipe.name}: evaluation of checkpoint {checkpoint[:12]}, step {steps:,}",
            subtitle=recipe.description,
            headline=_headline(inputs),
            sections=(*shown, *_curves(looks, worth)),
            next=_next(recipe, checkpoint if beside and beside.stats["lines"] else ""),
        )
    )
    part = Part(name=PAGE_FILE, blob=ctx.store.put_bytes(text.encode()))
    stats = {"sections": [section.key for section in found], "checkpoint": checkpoint}
    return manifest(EVALUATION_PAGE, Step(name=EVALUATION_PAGE, version=PAGE_VERSION), dict(inputs), [part], stats)


def _headline(inputs: Inputs) -> tuple[Fact, ...]:
    overall = inputs["evaluation"].stats["overall"]
    note = f"95% interval {overall['low']:.3f} to {overall['high']:.3f}; gzip -9 {overall['gzip']:.2f}"
    tokens = Fact(label="tokens trained", value=f"{inputs['run'].stats['tokens']:,}")
    return (tokens, Fact(label="bits per byte of held-out text", value=f"{overall['model']:.3f}", note=note))


def _curves(looks: Sequence[Mapping[str, Any]], worth: Mapping[str, Worth]) -> Iterator[Section]:
    """Yield the section with the curves of held-out slices and probes over training steps, if the run was validated."""
    names = sorted({name for look in looks for name in look["slices"]})
    slices = [_curve(name, [(look["step"], look["slices"].get(name)) for look in looks]) for name in names]
    asked = probe_curves.curves(looks)
    scores = [_curve(name, [(one.step, one.score) for one in own], worth[name].noise) for name, own in asked.items()]
    shown = {"Held-out slices": slices, "Correct answers of probes, with the noise of recent evaluations": scores}
    drawn = {title: tuple(one for one in own if one.steps) for title, own in shown.items()}
    groups = [CurveGroup(title=title, unit="bits per byte", curves=own) for title, own in drawn.items() if own]
    if groups:
        yield Section(
            key="curves",
            title="During the run",
            lead="The same measurements at several steps of the run, on samples of each slice's text and of each "
            "probe's items.",
            curves=tuple(groups),
        )


def _curve(name: str, points: Sequence[tuple[int, float | None]], noise: float | None = None) -> StepCurve:
    """Return the curve of a slice or a probe over training steps. Points without a value are left out, so the curve may
    be empty."""
    known = [(step, value) for step, value in points if value is not None]
    steps, values = tuple(step for step, _ in known), tuple(value for _, value in known)
    return StepCurve(name=name, steps=steps, values=values, noise=noise)


def _next(recipe: Recipe, compared: str) -> tuple[Next, ...]:
    """Return the commands that the page suggests. If the checkpoint has a comparison page, its link comes first."""
    against = f"comparison of every slice, item and span with {recipe.evaluation.against}"
    pages = (Next(what=against, link=comparison_stage.page_name(recipe, compared)),) if compared else ()
    return (
        *pages,
        Next(what="slices, worst documents, spans where two models differ", command="plinth model evaluation"),
        Next(what="model comparison", command="plinth model compare A B"),
        Next(what="occurrences of a text in training data and steps", command="plinth corpus trace TEXT"),
    )


def _present(recipe: Recipe, ctx: Context, made: Manifest) -> dict[str, Any]:
    return {"page": page_value(ctx, show_page(ctx, recipe, made))}


# `candidate` and `release`: registered and evaluated; promoted once every gate, including approvals, passes.

VERSION = "1"
CANDIDATE = Step(name="candidate", version=VERSION)
RELEASE = Step(name="release", version=VERSION)


def release_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that registers the candidate, and the stage that releases it after approval."""
    if recipe.release is None:
        return []
    owner, name = shared_owner(recipe), recipe.release.name
    return [
        Stage(
            asset="candidate",
            deps=(
                *("checkpoint", "evaluation", "run", "contamination", EVALUATION_PAGE),
                *each(recipe, "documents", "verdicts", "curated"),
                *_scored(recipe),
            ),
            make=partial(_candidate, recipe),
            intact=lambda ctx, made: (ctx.workspace.models / str(made.stats["directory"])).is_dir(),
            version=VERSION,
            params={"release": name},
            group="registry",
            description=f"The checkpoint, registered as a signed version of `{name}-candidate` with its evidence.",
            owner=owner,
            kinds=("mlflow",),
            present=_present_candidate,
            pool="registry",
        ),
        Stage(
            asset="release",
            deps=("candidate",),
            make=partial(_release, recipe),
            version=VERSION,
            params=recipe.release.model_dump(mode="json", exclude={"auto_approve_as"}),
            outside=partial(_history, recipe),
            group="release",
            description=f"The promoted version of `{name}`. Requires approval; the approval sensor promotes it.",
            owner=owner,
            kinds=("mlflow",),
            present=_present_candidate,
            pool="registry",
        ),
    ]


def _candidate(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    run, checkpoint, evaluation = inputs["run"], inputs["checkpoint"], inputs["evaluation"]
    prepared = config.load(ctx.workspace.runs / run.stats["run_id"] / "config.json")
    measured = manifests.facts(ctx, prepared)
    facts = candidate.Facts(
        contaminated_documents=curate.contaminated(
            ctx.store, by_bucket(recipe, inputs, "verdicts"), inputs["contamination"]
        ),
        licences=curate.licences(ctx.store, by_bucket(recipe, inputs, "curated")),
        sources={
            name: GrantedUses.model_validate(one)
            for name, one in curate.terms(
                ctx.store, by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "curated")
            ).items()
        },
        stability={
            "restarts": measured["restarts"],
            "interventions": measured["interventions"],
            "refused_checkpoints": measured["refused_checkpoints"],
            "diverged_steps": len(measured["diverged_steps"]),
        },
        requested_by=ctx.requested_by,
        cost={
            "wall_s": measured["training_s"],
            "tokens": float(run.stats["tokens"]),
            **settlement.amounts(ctx, prepared),
        },
    )
    materials = {asset: made.digest for asset, made in inputs.items()}
    registered = candidate.CandidateRun(id=prepared.run_id, key=prepared.key)
    scored = {asset: inputs[asset] for asset in _scored(recipe)}
    found, gates = api.register_candidate(ctx, recipe, checkpoint, evaluation, registered, facts, scored, materials)
    api.keep_files(ctx, recipe, prepared.run_id, [show_page(ctx, recipe, inputs[EVALUATION_PAGE])])
    say(f"candidate {found.model} version {found.version}: {summary(gates)}")
    stats = {"model": found.model, "version": found.version, "key": found.key, "directory": found.directory.name}
    return manifest("candidate", CANDIDATE, inputs, [], stats)


def _scored(recipe: Recipe) -> tuple[str, ...]:
    """Return the assets whose scores MLflow shows with the model."""
    shown = [one for one in measurements(recipe) if one.scores]
    return tuple(stage.asset for one in shown for stage in one.stages(recipe) if one.has(stage.asset))


def _history(recipe: Recipe, ctx: Context) -> str:
    """Return the digest of all promotions. A promotion or rollback by another process changes the digest and makes the
    asset stale."""
    return fingerprint.digest([record.model_dump(mode="json") for record in decisions.history(ctx, recipe)])


def _release(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    """Promote every approved candidate, and return the manifest of the latest promotion.

    Raises:
        GateError: the model has no release yet, and no candidate passes its gates.
    """
    for promoted in api.promote_if_approved(ctx, recipe):
        say(f"{promoted.model} version {promoted.version}: {promoted.action}")
    history = decisions.history(ctx, recipe)
    if not history:
        raise GateError(
            f"no candidate of {recipe.required_release().name} can be released",
            found=waiting(ctx, recipe),
            expected="no failed or pending gates",
            remedy="list candidates with every gate and its reason: `plinth approve`",
        )
    last = history[-1]
    stats = last.model_dump(mode="json")
    return manifest("release", RELEASE, inputs, [], stats)


def waiting(ctx: Context, recipe: Recipe) -> str:
    """Return a line with every pending candidate and the gates that block it."""
    lines = [
        f"version {status.version}: "
        + (status.error or ", ".join(f"{gate.name} {gate.state} ({gate.reason})" for gate in blocking(status.gates)))
        for status in decisions.pending(ctx, recipe)
    ]
    return "; ".join(lines) or "no candidate"


def _present_candidate(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[name, value] for name, value in made.stats.items() if isinstance(value, str | int | float)]
    return {"facts": markdown(table(["fact", "value"], rows))}
