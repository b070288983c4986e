"""Preparation of a run: bind the recipe's training section to data and weights, and write the `RunConfig`.

Runs that would fail later are rejected: a mixture that is too short, weights of another shape or vocabulary, an
exceeded privacy budget. Does not belong here: the resolved run and its identity (config).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from plinth.compute.context import Context
from plinth.errors import PlinthError, TrainingError
from plinth.records import Manifest, bucket_of
from plinth.tokens.order.steps import schedule
from plinth.training import config as configuration
from plinth.training import hooks
from plinth.training.config import RunConfig, load, run_key, write
from plinth.training.directory import RunDirectory
from plinth.training.initial import require_agreement
from plinth.training.parameters.initial import InitialState
from plinth.training.parameters.optimizers import origin_of
from plinth.training.parameters.run import Training

#: Sections of a run's configuration that differ from its recipe: hooks, content digests, expanded schedules.
RESOLVED = ("initial", "changes", "extensions")


@dataclass(frozen=True)
class Preparation:
    """Inputs of a run's preparation.

    Args:
        read: manifests of the assets that hooks read, by name.
        earlier: configuration of the run, if it has started.
    """

    ctx: Context
    training: Training
    mixture: Manifest
    tokenizer: Manifest
    canaries: Manifest | None
    read: Mapping[str, Manifest]
    run_id: str
    total_steps: int
    earlier: RunConfig | None


def prepare(
    ctx: Context,
    recipe_name: str,
    training: Training,
    mixture: Manifest,
    shards: Mapping[str, Manifest],
    tokenizer: Manifest,
    curated: Mapping[str, Manifest] | None = None,
    canaries: Manifest | None = None,
    probes: Mapping[str, Manifest] | None = None,
    initial: Manifest | None = None,
    read: Mapping[str, Manifest] = MappingProxyType({}),
) -> RunConfig:
    """Resolve a run and write `runs/<run_id>/config.json`.

    Placement, supervision and retention of an existing run can change between jobs. All other settings determine the
    run's id.

    Args:
        curated: held-out text by bucket, needed only for validation.
        canaries: planted text to measure memorization, if the recipe plants any.
        probes: items of probes and their comparison with training text (`probe_sets`, `protected`).
        initial: manifest of the recipe's initial weights.
        read: assets of the recipe's training hooks (`hooks.assets`), by name.

    Raises:
        TrainingError: the mixture is too short for two steps, or the run would not train on all planted copies.
        RecipeError, StageError: there is no held-out text to validate on, or the recipe's model or vocabulary differs
            from the initial weights.
    """
    begun = _initial_state(ctx, training, initial, tokenizer)
    inputs = {"mixture": mixture.digest, "tokenizer": tokenizer.digest}
    inputs |= {"initial": begun.manifest} if begun else {}
    inputs |= {asset: made.digest for asset, made in read.items()}
    key, origin = run_key(training, *inputs.values()), origin_of(training.optimizer)
    cut = {name: manifest.digest for name, manifest in shards.items()}
    run_id, total_steps = f"{recipe_name}-{key[:12]}", _total_steps(training, mixture)
    written = RunDirectory(ctx.workspace.runs / run_id).config
    earlier = load(written) if written.exists() else None
    config = RunConfig(
        **{name: getattr(training, name) for name in Training.model_fields if name not in (*RESOLVED, *hooks.HOOKS)},
        run_id=run_id,
        key=key,
        recipe=recipe_name,
        workspace=str(ctx.workspace.root),
        **{name: int(tokenizer.stats[name]) for name in ("vocab_size", "end_of_text")},
        **{name: int(mixture.stats[name]) for name in ("sequences", "sequence_tokens")},
        total_steps=total_steps,
        mixture=mixture.digest,
        shards=cut,
        tokenizer=tokenizer.digest,
        initial=begun,
        heldout=_heldout(ctx, training, curated or {}, tokenizer),
        blocks=_blocks(ctx, training, shards),
        provenance={
            **inputs,
            "run_key": key,
            "shards": cut,
            **({"optimizer": origin} if origin else {}),
            **({"extensions": hooks.origins(training)} if training.extensions else {}),
            **({"canaries": {"manifest": canaries.digest, **canaries.stats}} if canaries else {}),
        },
    )
    if canaries is not None:
        _require_drawn(ctx, config, mixture, shards, canaries)
    given = Preparation(ctx, training, mixture, tokenizer, canaries, read, run_id, total_steps, earlier)
    config = config.model_copy(update={"probes": _probes(ctx, config, probes or {}, tokenizer), **_states(given)})
    config = configuration.identified_as_prepared(config)
    for manifest in (mixture, tokenizer, *shards.values(), *filter(None, (initial, *read.values()))):
        ctx.refs.save(manifest)
    if earlier is None or earlier.amendments == config.amendments:
        write(config)  # amendments are written after the job has stopped: `amend`
    return config


def _initial_state(
    ctx: Context, training: Training, initial: Manifest | None, tokenizer: Manifest
) -> InitialState | None:
    """Check the initial weights of the run, and return their manifest's digest with the recipe's options."""
    if training.initial is None or initial is None:
        return None
    require_agreement(ctx.store, training.initial, training.model, initial, tokenizer)
    how = training.initial.model_dump(include={"optimizer", "vocabulary"})
    return InitialState(manifest=initial.digest, **how)


def _states(given: Preparation) -> dict[str, Any]:
    """Return the hook states for the run's configuration. States of hooks from packages are under `extensions`.

    Raises: the errors of the hooks.
    """
    states = {
        hook.name: hook.prepare(given, params) if hook.prepare else params
        for hook, params in hooks.asked(given.training)
    }
    others = {name: states.pop(name).model_dump(mode="json") for name in given.training.extensions}
    return {**states, "extensions": others}


def _total_steps(training: Training, mixture: Manifest) -> int:
    sequences, sequence_tokens = int(mixture.stats["sequences"]), int(mixture.stats["sequence_tokens"])
    schedules = (training.batch_schedule, training.length_schedule, training.amendments)
    steps = schedule(sequences, sequence_tokens, training.global_batch_sequences, *schedules).total
    if steps < 2:
        raise TrainingError(
            "the mixture is too short to train on",
            found=f"{sequences} sequences for batches of {training.global_batch_sequences}",
            expected="at least 2 steps",
            remedy="raise mixture.total_tokens or lower training.global_batch_sequences",
        )
    return steps


def _require_drawn(
    ctx: Context, config: RunConfig, mixture: Manifest, shards: Mapping[str, Manifest], canaries: Manifest
) -> None:
    """Check that the run trains on every planted copy, each one completely within one step."""
    from plinth.tokens.order.batch import draws, require_drawn  # compiled kernels, which ranks must not load

    require_drawn(draws(ctx, mixture, shards[bucket_of(canaries.asset)], canaries, config.steps))


def _heldout(ctx: Context, training: Training, curated: Mapping[str, Manifest], tokenizer: Manifest) -> str:
    """Return the digest of the tokenized held-out text, or an empty string if the run has no validation."""
    if training.validation is None:
        return ""
    from plinth.training.validation import heldout  # Arrow and tokenizers: not for ranks

    return heldout.prepare(ctx, training.validation, curated, tokenizer).digest


def _probes(ctx: Context, config: RunConfig, probes: Mapping[str, Manifest], tokenizer: Manifest) -> str:
    """Return the digest of the tokenized probes, or an empty string if the run scores no probes during training."""
    if config.validation is None or not config.validation.probes_share or not probes:
        return ""
    from plinth.training.validation import probe_plan  # Arrow and tokenizers: not for ranks

    tokens, share = config.tokens_through(config.total_steps), config.validation.probes_share
    budget = probe_plan.Budget(share, tokens, len(config.looks), config.sequence_tokens)
    return probe_plan.prepare(ctx, budget, probe_plan.scorable(ctx, probes), probes, tokenizer).digest


def _blocks(ctx: Context, training: Training, shards: Mapping[str, Manifest]) -> str:
    """Return the digest over the block digests of the shards, or an empty string if no shard is read in spans."""
    if not training.reading.by_spans(sum(made.bytes for made in shards.values())):
        return ""
    from plinth.tokens.shards import reader  # Arrow: not for ranks

    return reader.prepare(ctx, shards).digest


def notices(ctx: Context, config: RunConfig) -> list[str]:
    """Return notices about a run's configuration and earlier runs of its recipe, one sentence each."""
    return [*_unused(config), *_not_continued(ctx, config)]


def _unused(config: RunConfig) -> Iterator[str]:
    if (rest := config.sequences - config.steps.used) > 0:
        yield (
            f"{rest:,} of {config.sequences:,} sequences are not used, because they do not fill a step of "
            f"{config.steps.take(config.total_steps - 1)[1]:,}"
        )


def _not_continued(ctx: Context, config: RunConfig) -> Iterator[str]:
    """Before the first job of a run, yield a notice if the run does not continue an earlier run.

    More text or a longer schedule results in a new run key.
    """
    if config.directory.events.exists():
        return
    earlier = []
    for path in sorted(ctx.workspace.runs.glob(f"{config.recipe}-*/config.json")):
        with suppress(PlinthError):
            other = configuration.load(path)
            if other.recipe == config.recipe and other.directory.events.exists():
                earlier.append(f"{other.run_id} ({other.total_steps:,} steps)")
    if earlier:
        yield (
            f"run {config.run_id} starts from new weights and does not continue {', '.join(earlier)}; "
            "use `training.changes` to amend a run, or `training.initial` to start from its weights"
        )
