"""One run, resolved: the recipe's training section, bound to the data that the run reads.

The run key covers everything that decides the parameters (model, optimizer, global batch, seed,
precision, data) and nothing that only decides where, how divided, how often saved or how supervised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import MissingError, RecipeError, TrainingError
from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.records import Frozen, Manifest, Step, bucket_of
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.tokens.order.order import Order
from plinth.tokens.order.parameters import Amendment, BatchChange, LengthChange
from plinth.tokens.order.steps import Steps, schedule
from plinth.tokens.reading.parameters import Reading
from plinth.training.checkpoint.parameters import Checkpoints
from plinth.training.directory import RunDirectory
from plinth.training.distillation.parameters import VOCABULARY_REMEDY, TeacherState
from plinth.training.engine.deepspeed_block import identified_settings
from plinth.training.engine.optimizers import origin_of
from plinth.training.engine.parameters import Float8, Optimizer
from plinth.training.federated.parameters import Federated
from plinth.training.guard.parameters import GuardParameters
from plinth.training.initial.agreement import require_agreement, require_same_vocabulary
from plinth.training.initial.parameters import NAMES, InitialState
from plinth.training.parallel.parameters import Parallel
from plinth.training.parameters import Training
from plinth.training.privacy import secret
from plinth.training.privacy.parameters import PrivacyState
from plinth.training.rotary_schedule import RotaryChange, model_at
from plinth.training.sinks.parameters import Sinks
from plinth.training.stopping.parameters import Stopping
from plinth.training.telemetry.parameters import Telemetry
from plinth.training.validation.parameters import Validation

#: Version of a run's arithmetic, part of its identity. 3: initial weights are drawn by parameter and tile.
VERSION = "3"

#: Sections of `Training` that bear no identity. Amendments are in the identity of the checkpoints after them.
UNIDENTIFIED = (
    "launch",
    "reading",
    "parallel",
    "micro_batch_sequences",
    "supervision",
    "checkpoints",
    "amendments",
    "stopping",
    "telemetry",
    "sinks",
    "validation",
)


class RunConfig(Frozen):
    """Everything a training job needs, in one JSON file. `workspace` is the only path and is not hashed."""

    run_id: str
    key: str
    recipe: str
    workspace: str
    model: Model
    vocab_size: int = Field(ge=1)
    end_of_text: int = Field(ge=0)
    optimizer: Optimizer
    precision: Literal["fp32", "bf16", "fp16", "auto"]
    parallel: Parallel
    deepspeed: Mapping[str, Any] = Field(default_factory=dict, exclude_if=lambda given: not given)
    seed: int
    deterministic: bool = Field(True, exclude_if=lambda given: given)
    fp32_matmul: Literal["ieee", "tf32"] = Field("ieee", exclude_if=lambda kind: kind == "ieee")
    float8: Float8 = Field("none", exclude_if=lambda kind: kind == "none")
    launch: Launch
    sequence_tokens: int = Field(ge=2)
    micro_batch_sequences: int = Field(ge=1)
    global_batch_sequences: int = Field(ge=1)
    batch_schedule: tuple[BatchChange, ...] = ()
    length_schedule: tuple[LengthChange, ...] = ()
    rotary_schedule: tuple[RotaryChange, ...] = Field((), exclude_if=lambda given: not given)
    amendments: tuple[Amendment, ...] = ()
    sequences: int = Field(0, ge=0, description="Sequences of the mixture; 0: those of total_steps constant batches.")
    total_steps: int = Field(ge=2)
    mixture: str
    shards: Mapping[str, str]
    tokenizer: str
    initial: InitialState | None = Field(None, exclude_if=lambda given: given is None)
    distillation: TeacherState | None = Field(None, exclude_if=lambda given: given is None)
    federated: Federated | None = Field(None, exclude_if=lambda given: given is None)
    privacy: PrivacyState | None = Field(None, exclude_if=lambda given: given is None)
    stopping: Stopping = Stopping()
    telemetry: Telemetry = Telemetry()
    sinks: Sinks = Sinks()
    validation: Validation | None = None
    heldout: str = Field("", description="Digest of the held-out text to evaluate; see `heldout`.")
    probes: str = Field("", description="Digest of the probes to score; see `probe_plan`.")
    blocks: str = Field("", description="Digest of the block digests of shards that are read by spans.")
    guard: GuardParameters = GuardParameters()
    checkpoints: Checkpoints
    supervision: Supervision
    reading: Reading = Reading()
    batches: str = Field(
        "plinth.training.data:open_batches", description="module:function that opens the source of batches."
    )
    provenance: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def directory(self) -> RunDirectory:
        """The files of this run."""
        return RunDirectory(Path(self.workspace) / "runs" / self.run_id)

    @property
    def ranks(self) -> int:
        """Processes that train together, one per device."""
        return self.launch.ranks

    @property
    def data_ranks(self) -> int:
        """Ranks that see different sequences; the others divide the work on one model replica."""
        return self.parallel.data_ranks(self.ranks)

    @property
    def steps(self) -> Steps:
        """The positions of the order that each step takes. Step n of training is its step n - 1."""
        return self._scheduled(self.amendments)

    @property
    def draws(self) -> Steps:
        """As `steps`, with the positions that each step really takes: of a private run they follow from its key.

        Raises:
            SignatureError: the key of a private run is not on this machine.
        """
        if self.privacy is None:
            return self.steps
        from plinth.tokens.order.poisson import PoissonSteps

        own = self.steps
        key = secret.read(Workspace(self.workspace), self.run_id, self.privacy.secret_sha256)
        return PoissonSteps(own.sequences, own.sequence_tokens, own.stretches, key)

    def model_at(self, step: int) -> Model:
        """The model as a step trains it: its rotary positions may change on the way; 0 is before the first step."""
        return model_at(self.model, self.rotary_schedule, step)

    def accumulation(self, step: int = 1) -> int:
        """Micro batches per rank of optimizer step `step` (1 … total_steps)."""
        return self.steps.batch(step - 1) // (self.data_ranks * self.micro_batch_sequences)

    def step_tokens(self, step: int = 1) -> int:
        """Tokens of optimizer step `step` over all ranks."""
        return self.steps.tokens(step - 1)

    def tokens_through(self, step: int) -> int:
        """Tokens trained once step `step` is done; 0 for step 0."""
        return self.steps.tokens_before(step)

    @property
    def schedule_tokens(self) -> int:
        """Tokens of the learning rate's schedule: those of the run as it was begun, whatever was amended since, so that
        an amendment changes no rate of a step that was taken."""
        return self._scheduled(()).used * self.sequence_tokens

    def progress(self, step: int) -> tuple[int, int]:
        """Tokens trained once step `step` is done, and all of the schedule: where the learning rate stands."""
        return min(self.tokens_through(step), self.schedule_tokens), self.schedule_tokens

    def _scheduled(self, amendments: tuple[Amendment, ...]) -> Steps:
        sequences = self.sequences or self.total_steps * self.global_batch_sequences
        batch = self.global_batch_sequences
        return schedule(sequences, self.sequence_tokens, batch, self.batch_schedule, self.length_schedule, amendments)

    @property
    def audit_step(self) -> int:
        """The step whose checkpoint is kept for the resume proof; at least 1."""
        return max(1, self.total_steps - self.checkpoints.audit_steps, self.total_steps // 2)

    def saves_at(self, step: int) -> bool:
        """Whether the full state is committed after this step."""
        return step % self.checkpoints.every_steps == 0 or step in (self.audit_step, self.total_steps)

    def validates_at(self, step: int) -> bool:
        """Whether held-out text is evaluated after this step."""
        if self.validation is None:
            return False
        every = self.validation.every_steps
        return self.saves_at(step) if every == 0 else step % every == 0 or step == self.total_steps

    @property
    def looks(self) -> list[int]:
        """The steps after which held-out text is evaluated."""
        return [step for step in range(1, self.total_steps + 1) if self.validates_at(step)]


def identified(training: Training, *more: str) -> dict[str, Any]:
    """The parameters that decide a run, without placement and names: what a run begins from is named by its content.

    Args:
        more: sections that are identified too.
    """
    out: dict[str, Any] = {name: True for name in UNIDENTIFIED if name not in more}
    out |= {"initial": set(NAMES), "distillation": {"teacher"}, "federated": {"exchange"}}
    return _identified(training.model_dump(mode="json", exclude=out))


def run_key(training: Training, mixture: str, tokenizer: str, *models: str) -> str:
    """Identity of a run: its parameters, applied to the data and to the weights that it begins or learns from."""
    params, origin = identified(training), origin_of(training.optimizer)
    if origin is not None:
        params["optimizer"]["origin"] = origin
    inputs = [mixture, tokenizer, *filter(None, models)]
    return Step(name="run", version=VERSION, params=params).key(inputs)


def _identified(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a dump without the settings of DeepSpeed that change no number, and without a screening that is off."""
    block = identified_settings(fields.pop("deepspeed", {}))
    if "guard" in fields and fields["guard"].get("screening") is None:
        fields = {**fields, "guard": {name: one for name, one in fields["guard"].items() if name != "screening"}}
    return {**fields, **({"deepspeed": block} if block else {})}


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
    teacher: Manifest | None = None,
    logits: Manifest | None = None,
) -> RunConfig:
    """Resolve a run and write `runs/<run_id>/config.json`.

    `curated` holds the held-out text by bucket, `probes` the items of probes and their comparison with training text
    (`probe_sets`, `protected`); only validation asks for them. `canaries` is the text planted to measure memorisation,
    where there is any. `initial` holds the weights that the recipe begins from, `teacher` those it learns from,
    `logits` what the teacher said of the mixture's sequences, where the recipe stores that.

    Placement, supervision and retention of an existing run may change between jobs; the rest is in its id.

    Raises:
        TrainingError: when the mixture is too short for two steps, or would not draw all planted copies.
        RecipeError, StageError: there is no held-out text to validate on; or the recipe's model or vocabulary is not
            that of the weights it begins from.
    """
    begun, origin = _initial_state(training, initial, tokenizer), origin_of(training.optimizer)
    learnt = _teacher_state(training, teacher, tokenizer, logits)
    models = begun.manifest if begun else "", *((learnt.manifest, learnt.logits) if learnt else ())
    key = run_key(training, mixture.digest, tokenizer.digest, *models)
    config = RunConfig(
        run_id=f"{recipe_name}-{key[:12]}",
        key=key,
        recipe=recipe_name,
        workspace=str(ctx.workspace.root),
        **{name: getattr(training, name) for name in ("model", "optimizer", "precision", "seed", "guard", "deepspeed")},
        federated=training.federated,
        deterministic=training.deterministic,
        fp32_matmul=training.fp32_matmul,
        float8=training.float8,
        **{name: getattr(training, name) for name in (*UNIDENTIFIED, "batch_schedule", "length_schedule")},
        rotary_schedule=training.rotary_schedule,
        sequences=int(mixture.stats["sequences"]),
        vocab_size=tokenizer.stats["vocab_size"],
        end_of_text=tokenizer.stats["end_of_text"],
        sequence_tokens=int(mixture.stats["sequence_tokens"]),
        global_batch_sequences=training.global_batch_sequences,
        total_steps=_total_steps(training, mixture),
        mixture=mixture.digest,
        shards={name: manifest.digest for name, manifest in shards.items()},
        tokenizer=tokenizer.digest,
        initial=begun,
        distillation=learnt,
        heldout=_heldout(ctx, training, curated or {}, tokenizer),
        blocks=_blocks(ctx, training, shards),
        provenance={
            "run_key": key,
            "mixture": mixture.digest,
            "tokenizer": tokenizer.digest,
            **({"initial": begun.manifest} if begun else {}),
            **(learnt.inputs if learnt else {}),
            "shards": {name: manifest.digest for name, manifest in shards.items()},
            **({"optimizer": origin} if origin else {}),
            **({"canaries": {"manifest": canaries.digest, **canaries.stats}} if canaries else {}),
        },
    )
    if canaries is not None:
        _require_drawn(ctx, config, mixture, shards, canaries)
    private = _privacy_state(ctx, training, config, mixture, canaries)
    config = config.model_copy(update={"probes": _probes(ctx, config, probes or {}, tokenizer), "privacy": private})
    for manifest in (mixture, tokenizer, *shards.values(), *filter(None, (initial, teacher, logits))):
        ctx.refs.save(manifest)
    if not config.directory.config.exists() or load(config.directory.config).amendments == config.amendments:
        write(config)  # an amendment is written once the job has stopped: `amend`
    return config


def _initial_state(training: Training, initial: Manifest | None, tokenizer: Manifest) -> InitialState | None:
    """The weights that the run begins from, after a check that it can."""
    if training.initial is None or initial is None:
        return None
    require_agreement(training.initial, training.model, initial, tokenizer)
    how = training.initial.model_dump(include={"optimizer", "vocabulary"})
    return InitialState(manifest=initial.digest, **how)


def _teacher_state(
    training: Training, teacher: Manifest | None, tokenizer: Manifest, logits: Manifest | None
) -> TeacherState | None:
    """The model that the run learns from, after a check that it speaks of the same tokens."""
    params = training.distillation
    if params is None or teacher is None:
        return None
    require_same_vocabulary(teacher, tokenizer, "training.distillation.teacher", VOCABULARY_REMEDY)
    said = "" if logits is None else logits.digest
    return TeacherState(manifest=teacher.digest, share=params.share, temperature=params.temperature, logits=said)


def _privacy_state(
    ctx: Context, training: Training, config: RunConfig, mixture: Manifest, canaries: Manifest | None
) -> PrivacyState | None:
    """The noise and the key of a private run; those of a run that was begun stay.

    Raises:
        RecipeError: the budget does not allow the steps, or a sequence would come by more than one way.
    """
    params = training.privacy
    if params is None:
        return None
    if config.directory.config.exists() and (known := load(config.directory.config).privacy) is not None:
        return known
    if canaries is not None or Order(mixture).repeats:
        raise RecipeError(
            "training.privacy needs every sequence once in the mixture",
            found="canaries, whose copies are planted to be seen" if canaries else "a bucket of more than one epoch",
            expected="no canaries, and mixture.total_tokens that no bucket has to repeat itself for",
        )
    from plinth.training.privacy.accounting import resolved_apart

    rate = 1 / config.total_steps
    found = resolved_apart(params, rate, config.total_steps)
    return PrivacyState(
        epsilon=params.epsilon,
        delta=params.delta,
        clip_norm=params.clip_norm,
        noise_multiplier=found["noise_multiplier"],
        sample_rate=rate,
        secret_sha256=secret.make(ctx.workspace, config.run_id),
    )


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
    """Every planted copy has a step that trains on all of it."""
    from plinth.evaluation.memorisation.draws import draws, require_drawn  # compiled kernels: not for ranks

    require_drawn(draws(ctx, mixture, shards[bucket_of(canaries.asset)], canaries, config.steps))


def _heldout(ctx: Context, training: Training, curated: Mapping[str, Manifest], tokenizer: Manifest) -> str:
    """Digest of the tokenised held-out text; empty without validation."""
    if training.validation is None:
        return ""
    from plinth.training.validation import heldout  # Arrow and tokenizers: not for ranks

    return heldout.prepare(ctx, training.validation, curated, tokenizer).digest


def _probes(ctx: Context, config: RunConfig, probes: Mapping[str, Manifest], tokenizer: Manifest) -> str:
    """Digest of the tokenised probes; empty where none are scored while the run trains."""
    if config.validation is None or not config.validation.probes_share or not probes:
        return ""
    from plinth.training.validation import probe_plan  # Arrow and tokenizers: not for ranks

    tokens, share = config.tokens_through(config.total_steps), config.validation.probes_share
    budget = probe_plan.Budget(share, tokens, len(config.looks), config.sequence_tokens)
    return probe_plan.prepare(ctx, budget, probe_plan.scorable(ctx, probes), probes, tokenizer).digest


def _blocks(ctx: Context, training: Training, shards: Mapping[str, Manifest]) -> str:
    """Digest of the block digests of the shards; empty where none is read by spans."""
    if not training.reading.by_spans(sum(made.bytes for made in shards.values())):
        return ""
    from plinth.tokens.shards import blocks  # Arrow: not for ranks

    return blocks.prepare(ctx, shards).digest


def write(config: RunConfig) -> Path:
    """Write the configuration into the run's directory, atomically. Returns its path."""
    path = config.directory.config
    write_bytes(path, json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True).encode() + b"\n")
    return path


def load(path: Path | str) -> RunConfig:
    """Read a configuration.

    Raises:
        MissingError: no such file.
        TrainingError: not a run's configuration.
    """
    try:
        return RunConfig.model_validate_json(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise MissingError(
            f"no run configuration {path}", remedy="submit the run again: it is written first"
        ) from error
    except ValidationError as error:
        raise TrainingError(f"{path} is not a run configuration", found=error) from error


def identity(config: RunConfig, step: int = 0) -> str:
    """Digest of all that a checkpoint after `step` must share with the run that loads it: no path, no policy, no rank
    count. It covers the batches and lengths of the steps taken only, so that an amendment of later ones leaves earlier
    checkpoints valid and is part of the identity of every checkpoint after it."""
    names = ("workspace", "batches", "total_steps", "heldout", "probes", "blocks", *UNIDENTIFIED)
    unidentified: dict[str, Any] = dict.fromkeys(names, True) | {"federated": {"exchange"}}
    fields = _identified(config.model_dump(mode="json", exclude=unidentified))
    return fingerprint.digest({**fields, "total_tokens": config.schedule_tokens, "steps": config.steps.through(step)})
