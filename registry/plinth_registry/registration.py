"""Registration of a candidate in MLflow: experiment, run, model, metrics, version; descriptions and links for people.

Each part is created once. The version is created last, in one call with all its tags: a crash before this call leaves
nothing that looks like a candidate, and the next call reuses the existing parts. Descriptions and links have no effect
on decisions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import accumulate, takewhile
from typing import Any, Final, get_args

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.evaluation.measurement import BLOCKING, GateState
from plinth.provenance.statements import INITIAL, INVENTORY, USER_FILE, Chain
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage import atomic
from plinth.text import markdown_text
from plinth.training.checkpoint import mean_record
from plinth_registry.candidate import SCHEME, CandidateRun, Facts, model_name
from plinth_registry.consumers import DIGEST, PARENT
from plinth_registry.gates import GateResult, summary
from plinth_registry.mlflow import connection
from plinth_registry.policy import SignedPolicy

RUN_TAG = "plinth.run"
KEY_TAG = "plinth.candidate"
#: Experiment tags that make MLflow show runs and models instead of traces.
MODEL_TRAINING: Final = {"mlflow.experimentKind": "custom_model_development"}
#: Maximum length of a dataset digest in MLflow.
DIGEST_DIGITS = 36
#: Maximum number of metrics per MLflow request.
BATCH = 1000


def locked(ctx: Context) -> AbstractContextManager[None]:
    """Lock the registry for one writer at a time, because MLflow has no transactions over several calls."""
    return atomic.locked(ctx.workspace.mlflow / "registry.lock")


def ensure_run(client: Any, experiment: str, run_id: str) -> Any:
    """Return the MLflow run of a training run. If it does not exist, create it."""
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found else client.create_experiment(experiment, tags=MODEL_TRAINING)
    runs = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{run_id}'", max_results=1)
    return runs[0] if runs else client.create_run(experiment_id, run_name=run_id, tags={RUN_TAG: run_id})


def ensure_version(
    ctx: Context,
    client: Any,
    recipe: Recipe,
    *,
    key: str,
    chain: Chain,
    checkpoint: Manifest,
    evaluation: Manifest,
    run: CandidateRun,
    facts: Facts,
    source: str,
) -> Any:
    """Return the candidate version with this key. If it does not exist, create it."""
    name = model_name(recipe)
    connection.ensure_model(
        client, name, f"Candidates of {recipe.required_release().name}: registered after training, evaluated by gates."
    )
    for version in connection.versions(client, name):
        if version.tags.get("candidate") == key and version.source == source:  # tags can be set by others
            return version
    mlflow_run = ensure_run(client, recipe.name, run.id)
    model = _ensure_model(client, mlflow_run, checkpoint, key)
    _log_scores(client, mlflow_run, model, evaluation, facts)
    lineage = {"candidate": key, "data": dict(chain.data_versions), "sources": dict(chain.sources)}
    client.log_dict(mlflow_run.info.run_id, lineage, lineage_file(key))
    client.log_inputs(mlflow_run.info.run_id, datasets=datasets(ctx, chain, evaluation))
    if mlflow_run.info.status == "RUNNING":
        client.set_terminated(mlflow_run.info.run_id, "FINISHED")
    return client.create_model_version(
        name,
        source,
        run_id=mlflow_run.info.run_id,
        model_id=model.model_id,
        tags=_tags(recipe, key, chain, checkpoint, evaluation, run, facts),
        description=scores_text(checkpoint.digest, evaluation.stats.get("slices") or {}),
        await_creation_for=None,
    )


def lineage_file(key: str) -> str:
    """Return the name of the artifact that lists the digests of a candidate's ancestors. The name contains the
    candidate's key."""
    return f"lineage-{key[:12]}.json"


def datasets(ctx: Context, chain: Chain, evaluation: Manifest) -> list[Any]:
    """Return the dataset inputs of a candidate for MLflow: the shards of every bucket, and the tables that the
    evaluation read. The name of an input is its asset with a prefix of its manifest's digest; its source is
    `plinth:///manifests/<digest>`."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    shards = {link.asset: link.digest for link in chain.own if link.asset.endswith("/shards")}
    raw = ("checkpoint", INVENTORY, USER_FILE)  # files of the user have no manifest
    read = {asset: digest for asset, digest in evaluation.inputs.items() if not asset.startswith(raw)}
    found = []
    for context, inputs in (("training", shards), ("evaluation", read)):
        for asset, digest in sorted(inputs.items()):
            stats = ctx.refs.load(digest).stats
            dataset = Dataset(
                name=asset,
                digest=digest[:DIGEST_DIGITS],
                source_type="plinth",
                source=json.dumps({"uri": f"{SCHEME}/manifests/{digest}"}),
                profile=json.dumps({name: stats[name] for name in ("documents", "tokens", "rows") if name in stats}),
            )
            found.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
    return found


def show_gates(
    client: Any,
    version: Any,
    results: Iterable[GateResult],
    root: str,
    policy: SignedPolicy | None = None,
    measured: str = "",
    card: str = "",
) -> None:
    """Write the gates' results to a version's tags and description, for people. Only changes are written. Tags have one
    line per gate, and the evidence is an artifact of the version's run.

    Args:
        root: title of the root of trust.
        measured: scores, as `scores_text` formats them; empty to keep the existing scores.
        card: model card in Markdown; empty to keep the existing card.
    """
    results = tuple(results)
    tags = {f"gate/{result.name}": result.text for result in results}
    if policy is not None:
        tags |= {f"gate/{name}": f"not required by policy: {reason}" for name, reason in policy.policy.without.items()}
        tags["policy"] = f"{policy.title}, signed by {', '.join(policy.signers)}"
    tags["gates"] = summary(results)
    evidence = [result.model_dump(mode="json") for result in results]
    tags |= {"gates.evidence": fingerprint.digest(evidence)[:16], "root": root}
    if version.tags.get("gates.evidence") != tags["gates.evidence"]:
        client.log_dict(version.run_id, {"gates": evidence}, f"gates-{version.name}-{version.version}.json")
    for key, value in tags.items():
        if version.tags.get(key) != value:
            client.set_model_version_tag(version.name, version.version, key, value)
    describe(client, version, {**version.tags, **tags}, measured, card)


def describe(client: Any, version: Any, tags: Mapping[str, str], measured: str = "", card: str = "") -> None:
    """Write a version's description, which MLflow shows first, from the version's tags, scores and model card.

    Args:
        measured: scores, as `scores_text` formats them; empty to keep the existing scores.
        card: model card in Markdown; empty to keep the existing card.
    """
    known = version.description or ""
    shown = _stored(client, version, card) if card else _parts(known)[1]
    text = version_text(measured or known, tags, shown)
    if text != known:
        client.update_model_version(version.name, version.version, text)


def _stored(client: Any, version: Any, card: str) -> str:
    """Store a model card with the artifacts of a version's run. Return its text for the description, which begins with
    the name of the artifact.
    """
    name, digest = f"model-card-{version.name}-{version.version}.md", fingerprint.digest(card)[:16]
    if version.tags.get(CARD_TAG) != digest:
        client.log_text(version.run_id, card, name)
        client.set_model_version_tag(version.name, version.version, CARD_TAG, digest)
    text = card.partition("\n---\n")[2] if card.startswith("---\n") else card  # without the front matter for the Hub
    return f"{CARD}{name}` among the artifacts of the source run.\n\n{text.strip()}"


def logged_model(client: Any, experiment_id: str, key: str) -> Any:
    """Return MLflow's record of the model of the candidate with this key, or None if there is no record yet."""
    found = client.search_logged_models([experiment_id], filter_string=f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
    return found[0] if found else None


def _ensure_model(client: Any, run: Any, checkpoint: Manifest, key: str) -> Any:
    """Return MLflow's record of the model, to which metrics are bound. If it does not exist, create it."""
    model = logged_model(client, run.info.experiment_id, key)
    if model is None:
        model = client.create_logged_model(
            run.info.experiment_id,
            name=f"{'mean' if mean_record.is_mean(checkpoint) else 'checkpoint'}-{checkpoint.digest[:12]}",
            source_run_id=run.info.run_id,
            tags={KEY_TAG: key, "mlflow.model.isExternal": "true"},
        )
    return model if str(model.status) == "READY" else client.finalize_logged_model(model.model_id, "READY")


def _log_scores(client: Any, run: Any, model: Any, evaluation: Manifest, facts: Facts) -> None:
    from mlflow.entities import Metric

    values = {f"cost/{name}": value for name, value in facts.cost.items()}
    for name, row in (evaluation.stats.get("slices") or {}).items():
        for who in ("model", "gzip", "trigram"):
            if isinstance(row.get(who), int | float):
                values[f"bits_per_byte/{name}/{who}"] = float(row[who])
    # A fixed time per candidate, so that MLflow deduplicates repeated metrics.
    at_ms, model_id = run.info.start_time, model.model_id
    metrics = [Metric(key, float(value), at_ms, 0, model_id=model_id) for key, value in sorted(values.items())]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(run.info.run_id, metrics=metrics[start : start + BATCH])


def _child_of(chain: Chain, checkpoint: Manifest) -> dict[str, str]:
    """Return the tags of a model that started from another checkpoint. The tags allow it to be enrolled as a child of
    that checkpoint."""
    parents = [link.inputs.get("checkpoint") for link in chain.own if link.asset == INITIAL]
    return {PARENT: parents[0], DIGEST: checkpoint.digest} if parents and parents[0] else {}


def _tags(
    recipe: Recipe, key: str, chain: Chain, checkpoint: Manifest, evaluation: Manifest, run: CandidateRun, facts: Facts
) -> dict[str, str]:
    tags = {
        "candidate": key,
        "checkpoint": checkpoint.digest,
        "evaluation": evaluation.digest,
        "recipe": recipe.name,
        "recipe.fingerprint": fingerprint.digest(recipe),
        "run": run.id,
    }
    tags |= {"lineage": f"{lineage_file(key)} among the artifacts of the source run"}
    tags |= _child_of(chain, checkpoint)
    tags |= {"mean": mean_record.in_words(checkpoint)} if mean_record.is_mean(checkpoint) else {}
    tags |= {f"cost/{name}": str(value) for name, value in facts.cost.items()}
    if facts.requested_by:
        tags["requested_by"] = facts.requested_by
    return tags


# Description of a version: taints, canary, gates with evidence, scores, model card. Evaluating the gates rewrites all
# parts; a taint keeps the existing scores and card.

SCORES = "## Scores"
#: First words of a model card in a description.
CARD: Final = "The full model card is `"
#: Tag with the digest of the model card among the artifacts.
CARD_TAG: Final = "card"
_SECTION = re.compile(r"(?m)^(?=#{1,6} )")
HOW_TO_APPROVE = (
    "Approval is pending. To approve, run `plinth approve`. If MLflow requires a login and the gate policy accepts "
    "tags, you can instead set two tags on this version: `approval` = `approved` and `approval.reason`. A second "
    "person uses `approval.2` and `approval.2.reason`."
)
#: Tag with the reason why approval tags are not counted (`plinth_registry.decisions`).
ANSWER = "approval.answer"
#: Maximum length of a description in MLflow's databases.
DESCRIPTION_CHARACTERS = 5000
#: Tags of gates: state and reason.
GATE_TAG = "gate/"
#: Maximum characters of a gate's reason; the tag `gate/NAME` has all.
REASON_CHARACTERS = 150
#: Maximum characters of a canary's finding; the tag `trial` has all.
TRIAL_CHARACTERS = 400


def scores_text(checkpoint: str, slices: Mapping[str, Any]) -> str:
    """Return a Markdown table of bits per byte by slice of held-out text."""
    rows = ["| slice | bytes | model | gzip -9 | byte trigram |", "|---|---|---|---|---|"]
    for name, row in sorted(slices.items()):
        cells = [_cell(row.get(column)) for column in ("bytes", "model", "gzip", "trigram")]
        rows.append(f"| {markdown_text(name)} | {' | '.join(cells)} |")
    head = f"Checkpoint `{checkpoint}`, bits per byte on held-out text (lower is better):"
    return "\n".join([SCORES, "", head, "", *rows])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else ""


def version_text(known: str, tags: Mapping[str, str], card: str = "") -> str:
    """Format a version's description. If it exceeds `DESCRIPTION_CHARACTERS`, the last sections of the model card are
    omitted, then the last slices.

    Args:
        known: current description, whose scores are kept, and whose model card is kept if `card` is empty.
        tags: tags of the version, as `registration` and `freeze` write them.
    """
    scores, known_card = _parts(known)
    sections = [f"\n\n{one.strip()}" for one in _SECTION.split(card or known_card) if one]
    room = DESCRIPTION_CHARACTERS - len(sections[0] if sections else "")
    text = "\n".join([*_banner(tags), *_gates(tags), scores])
    if len(text) > room:
        note = "\n| … more: metrics `bits_per_byte/…` of the run | | | | |"
        text = text[: room - len(note)].rpartition("\n")[0] + note
    fitting = accumulate(sections, initial=text)
    return list(takewhile(lambda found: len(found) <= DESCRIPTION_CHARACTERS, fitting))[-1]


def _parts(description: str) -> tuple[str, str]:
    """Return the scores and the model card of a description."""
    kept = description[description.index(SCORES) :] if SCORES in description else description
    scores, mark, card = kept.partition(CARD)
    return scores.rstrip(), mark + card


def _banner(tags: Mapping[str, str]) -> Iterable[str]:
    if tags.get("taint"):
        yield f"> **TAINTED, do not use.** {markdown_text(tags['taint'])}"
        yield f"> Upstream and downstream artifacts: `plinth release impact {tags.get('checkpoint', '')[:16]}`"
        yield ""
    if tags.get("root", "").startswith("demo root"):
        yield f"> Signed under a **{markdown_text(tags['root'])}**, with demo keys, not for production."
        yield ""
    if tags.get(ANSWER):
        yield f"> **Approval tags are not counted.** {markdown_text(tags[ANSWER])}"
        yield ""
    if tags.get("mean"):
        yield f"> The weights are a {markdown_text(tags['mean'])}."
        yield ""
    if tags.get("trial"):
        yield f"> **Canary, last check:** {_short(tags['trial'], TRIAL_CHARACTERS)}"
        yield f"> Plot: `{markdown_text(tags.get('trial.page', ''))}` among the artifacts of the source run."
        yield ""


def _gates(tags: Mapping[str, str]) -> Iterable[str]:
    rows = [
        row
        for name in sorted(tags)
        if name.startswith(GATE_TAG)
        for row in _row(name.removeprefix(GATE_TAG), tags[name])
    ]
    if not rows:
        return
    yield f"## Gates: {markdown_text(tags.get('gates', ''))}"
    yield ""
    yield from ("| gate | state | evidence |", "|---|---|---|")
    yield from rows
    yield ""
    where = "`gates-….json` among the artifacts of the source run"
    yield f"{markdown_text(tags.get('policy', 'No signed policy'))}. Evidence: {where}."
    yield ""
    if tags.get(f"{GATE_TAG}approvals", "").startswith("pending"):
        yield HOW_TO_APPROVE
        yield ""


def _row(name: str, text: str) -> Iterable[str]:
    """Yield the table row of a gate, built from the gate's tag. If the policy does not require the gate, or the tag was
    changed, yield nothing."""
    state, _, detail = text.partition(": ")
    if state in get_args(GateState):
        shown = f"**{state}**" if state in BLOCKING else state
        yield f"| {markdown_text(name)} | {shown} | {_short(detail, REASON_CHARACTERS)} |"


def _short(text: str, most: int) -> str:
    shown = markdown_text(text)
    return shown if len(shown) <= most else f"{shown[:most]}…"


NOTE = "mlflow.note.content"
_LINK = re.compile(r"\s*\[State and pages of this workspace\]\([^)]*\)")


def link_to_pages(client: Any, recipe: Recipe, url: str) -> tuple[str, ...]:
    """Write the link to the workspace's pages to the recipe's experiment and models in MLflow. Return the names of the
    experiments and models that were changed."""
    changed = []
    experiment = client.get_experiment_by_name(recipe.name)
    if experiment is not None:
        before = experiment.tags.get(NOTE, "")
        if (text := _linked(before, url)) != before:
            client.set_experiment_tag(experiment.experiment_id, NOTE, text)
            changed.append(f"experiment {recipe.name}")
        for key, value in MODEL_TRAINING.items():  # earlier versions did not set them
            if key not in experiment.tags:
                client.set_experiment_tag(experiment.experiment_id, key, value)
    wanted = {model_name(recipe), recipe.required_release().name} if recipe.release else set()
    for model in client.search_registered_models() if wanted else ():
        before = model.description or ""
        if model.name in wanted and (text := _linked(before, url)) != before:
            client.update_registered_model(model.name, description=text)
            changed.append(f"model {model.name}")
    return tuple(changed)


def _linked(text: str, url: str) -> str:
    return f"{_LINK.sub('', text).rstrip()}\n\n[State and pages of this workspace]({url})".lstrip()
