"""Run configuration: the recipe's training section, bound to the data of the run.

The run key covers all settings that affect the trained parameters (model, optimizer, global batch, seed, precision,
data). It excludes placement, parallel layout, checkpoint frequency and supervision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.errors import MissingError, ResumeError, TrainingError
from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.records import Frozen, Step
from plinth.sections import extended, refusal
from plinth.storage.atomic import write_bytes
from plinth.tokens.order.steps import Amendment, BatchChange, LengthChange, Steps, schedule
from plinth.tokens.shards.parameters import Reading
from plinth.training import hooks
from plinth.training.directory import RunDirectory
from plinth.training.parameters.guard import GuardParameters, Stopping
from plinth.training.parameters.initial import NAMES, InitialState
from plinth.training.parameters.optimizers import Float8, Optimizer, RotaryChange, model_at, origin_of
from plinth.training.parameters.parallel import Parallel, identified_settings
from plinth.training.parameters.run import Checkpoints, Recovery, ReplayChecks, Sinks, Telemetry, Training, Validation
from plinth.training.parameters.trainer import ExternalTrainer

#: Version of a run's arithmetic, part of its identity. 3: initial weights are drawn by parameter and tile.
VERSION = "3"

#: Sections of `Training` excluded from identity. Amendments are in the identity of the checkpoints after them.
UNIDENTIFIED = (
    "launch",
    "reading",
    "parallel",
    "micro_batch_sequences",
    "supervision",
    "checkpoints",
    "recovery",
    "replay_checks",
    "amendments",
    "stopping",
    "telemetry",
    "sinks",
    "validation",
    "contract",
)


@extended("run")
class RunConfig(Frozen):
    """Everything that a training job needs, in one JSON file. `workspace` is the only path and is not hashed."""

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
    sequences: int = Field(
        0,
        ge=0,
        description="Number of sequences in the run's data. If 0, the run has `total_steps` batches of equal size.",
    )
    total_steps: int = Field(ge=2)
    mixture: str
    shards: Mapping[str, str]
    tokenizer: str
    initial: InitialState | None = Field(None, exclude_if=lambda given: given is None)
    extensions: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict, exclude_if=lambda given: not given)
    trainer: ExternalTrainer | None = Field(None, exclude_if=lambda given: given is None)
    stopping: Stopping = Stopping()
    telemetry: Telemetry = Telemetry()
    sinks: Sinks = Sinks()
    validation: Validation | None = None
    heldout: str = Field("", description="Digest of the held-out text to evaluate; `validation.heldout` writes it.")
    probes: str = Field("", description="Digest of the probes to score; `validation.probe_plan` writes it.")
    blocks: str = Field(
        "", description="Digest of the block digests of all shards. Set only if shards are read in byte ranges (spans)."
    )
    guard: GuardParameters = GuardParameters()
    checkpoints: Checkpoints
    recovery: Recovery = Field(Recovery(), exclude_if=lambda given: given == Recovery())
    replay_checks: ReplayChecks | None = Field(None, exclude_if=lambda given: given is None)
    supervision: Supervision
    reading: Reading = Reading()
    contract: Literal["optional", "required"] = Field("optional", exclude_if=lambda given: given == "optional")
    batches: str = Field(
        "plinth.training.data:open_batches", description="module:function that opens the source of batches."
    )
    provenance: Mapping[str, Any] = Field(default_factory=dict)
    identity: str = Field(
        "",
        exclude_if=lambda given: not given,
        description="Digest of the settings that identify the run, as they were prepared.",
    )

    @property
    def directory(self) -> RunDirectory:
        """Paths of this run's files."""
        return RunDirectory(Path(self.workspace) / "runs" / self.run_id)

    @property
    def ranks(self) -> int:
        """Number of processes that train together, one per device."""
        return self.launch.ranks

    @property
    def data_ranks(self) -> int:
        """Number of ranks that see different sequences. The other ranks divide the work of one model replica."""
        return self.parallel.data_ranks(self.ranks)

    @property
    def steps(self) -> Steps:
        """For each step, the positions of its sequences in the data order. Training step n is step n - 1 of the
        order."""
        return self._scheduled(self.amendments)

    @property
    def draws(self) -> Steps:
        """For each step, the positions in the data order that it uses: those of `steps`, unless a hook samples others.

        Raises:
            SignatureError: the key of a private run is not on this machine.
        """
        drawn = (hook.draws(self, state) for hook, state in hooks.asked(self) if hook.draws)
        return next(drawn, self.steps)

    def model_at(self, step: int) -> Model:
        """Return the model configuration at a step; step 0 is before the first step.

        The rotary position settings may change during the run.
        """
        return model_at(self.model, self.rotary_schedule, step)

    def accumulation(self, step: int = 1) -> int:
        """Return the number of micro batches per rank in optimizer step `step` (1 … total_steps)."""
        return self.steps.batch(step - 1) // (self.data_ranks * self.micro_batch_sequences)

    def step_tokens(self, step: int = 1) -> int:
        """Return the number of tokens in optimizer step `step`, over all ranks."""
        return self.steps.tokens(step - 1)

    def tokens_through(self, step: int) -> int:
        """Return the number of tokens trained up to and including step `step`; 0 for step 0."""
        return self.steps.tokens_before(step)

    @property
    def schedule_tokens(self) -> int:
        """Total tokens of the learning rate schedule.

        The total comes from the original configuration, so an amendment does not change the learning rate of a past
        step.
        """
        return self._scheduled(()).used * self.sequence_tokens

    def progress(self, step: int) -> tuple[int, int]:
        """Return the position in the learning rate schedule: the tokens trained through step `step`, and the total
        tokens."""
        return min(self.tokens_through(step), self.schedule_tokens), self.schedule_tokens

    def _scheduled(self, amendments: tuple[Amendment, ...]) -> Steps:
        sequences = self.sequences or self.total_steps * self.global_batch_sequences
        batch = self.global_batch_sequences
        return schedule(sequences, self.sequence_tokens, batch, self.batch_schedule, self.length_schedule, amendments)

    @property
    def audit_step(self) -> int:
        """Step of the checkpoint that is kept for the proof that a resumed run is exact; at least 1."""
        return max(1, self.total_steps - self.checkpoints.audit_steps, self.total_steps // 2)

    @property
    def sampled_steps(self) -> set[int]:
        """Steps whose checkpoints an external trainer keeps for the replay: the first after each quarter of the run."""
        every = self.checkpoints.every_steps
        return {-(-self.total_steps * quarter // (4 * every)) * every for quarter in (1, 2, 3)}

    def saves_at(self, step: int) -> bool:
        """Return True if a checkpoint is committed after this step."""
        return step % self.checkpoints.every_steps == 0 or step in (self.audit_step, self.total_steps)

    def validates_at(self, step: int) -> bool:
        """Return True if held-out text is evaluated after this step."""
        if self.validation is None:
            return False
        every = self.validation.every_steps
        return self.saves_at(step) if every == 0 else step % every == 0 or step == self.total_steps

    @property
    def looks(self) -> list[int]:
        """Steps after which held-out text is evaluated."""
        return [step for step in range(1, self.total_steps + 1) if self.validates_at(step)]


def identified(training: Training, *more: str) -> dict[str, Any]:
    """Return the parameters that identify a run, without placement and names. Initial weights are identified by
    content.

    Args:
        more: names of further sections to include.
    """
    out: dict[str, Any] = {name: True for name in UNIDENTIFIED if name not in more}
    out |= {"initial": set(NAMES), **_unidentified(training)}
    return _identified(training.model_dump(mode="json", exclude=out))


def _unidentified(section: Training | RunConfig) -> dict[str, set[str]]:
    """Return, by hook name, the parameters of each hook that are not part of the run's identity."""
    return {hook.name: set(hook.unidentified) for hook, _ in hooks.asked(section) if hook.unidentified}


def run_key(training: Training, mixture: str, tokenizer: str, *models: str) -> str:
    """Return the identity of a run: a digest over its parameters, its data, and its initial or teacher weights."""
    params, origin = identified(training), origin_of(training.optimizer)
    if origin is not None:
        params["optimizer"]["origin"] = origin
    if training.extensions:
        params["origins"] = hooks.origins(training)
    inputs = [mixture, tokenizer, *filter(None, models)]
    return Step(name="run", version=VERSION, params=params).key(inputs)


def _identified(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` without disabled screening and without DeepSpeed settings that do not affect the run's
    numbers."""
    block = identified_settings(fields.pop("deepspeed", {}))
    if "guard" in fields and fields["guard"].get("screening") is None:
        fields = {**fields, "guard": {name: one for name, one in fields["guard"].items() if name != "screening"}}
    return {**fields, **({"deepspeed": block} if block else {})}


def write(config: RunConfig, path: Path | None = None) -> Path:
    """Write the configuration atomically, by default to the run's directory, and return the path."""
    path = path or config.directory.config
    write_bytes(path, json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True).encode() + b"\n")
    return path


def load(path: Path | str) -> RunConfig:
    """Read a run configuration. Its workspace is set to the one that contains the file, because workspaces can be
    moved.

    Raises:
        MissingError: the file does not exist.
        TrainingError: the file is not a run configuration.
    """
    try:
        return parsed(Path(path).read_bytes(), Path(path))
    except FileNotFoundError as error:
        raise MissingError(f"no run configuration {path}", remedy="submit the run again to write the file") from error


def parsed(data: bytes, path: Path) -> RunConfig:
    """Return the run configuration in the content of a file, with the workspace that contains the file.

    Raises:
        TrainingError: the content is not a run configuration.
    """
    try:
        return _where_it_lies(RunConfig.model_validate_json(data), path.absolute().parent)
    except ValidationError as error:
        absent = [why for detail in error.errors() if (why := refusal(f"run.{detail['loc'][0]}"))]
        raise TrainingError(f"{path} is not a run configuration", found=absent[0] if absent else error) from error


def _where_it_lies(config: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration with the workspace that contains `folder`, if `folder` has the form `runs/ID`.

    Otherwise return the configuration unchanged.
    """
    if (folder.parent.name, folder.name) != ("runs", config.run_id):
        return config
    return config.model_copy(update={"workspace": str(folder.parent.parent)})


def layout_of(config: RunConfig) -> dict[str, int]:
    """Return the settings that divide state and gradient sums over ranks. A run resumes bit for bit if they are
    equal."""
    parallel = config.parallel
    degrees = {name: int(getattr(parallel, name)) for name in ("zero_stage", "tensor", "pipeline", "sequence")}
    degrees |= {"expert": parallel.expert} if parallel.expert > 1 else {}
    return {"ranks": config.ranks, "micro_batch_sequences": config.micro_batch_sequences, **degrees}


def identity(config: RunConfig, step: int = 0) -> str:
    """Return the digest of all settings that a checkpoint after `step` must share with the run that loads it.

    The digest excludes paths, policies and the number of ranks. It includes batch sizes and sequence lengths of past
    steps only. An amendment of later steps therefore leaves earlier checkpoints valid, and is part of the identity of
    every later checkpoint.
    """
    names = ("workspace", "identity", "batches", "total_steps", "heldout", "probes", "blocks", *UNIDENTIFIED)
    unidentified: dict[str, Any] = dict.fromkeys(names, True) | _unidentified(config)
    fields = _identified(config.model_dump(mode="json", exclude=unidentified))
    return fingerprint.digest({**fields, "total_tokens": config.schedule_tokens, "steps": config.steps.through(step)})


def identified_as_prepared(config: RunConfig) -> RunConfig:
    """Return the configuration with the digest of its settings, by which an edited file is recognized."""
    return config.model_copy(update={"identity": identity(config)})


def require_prepared(config: RunConfig) -> None:
    """Raise an error if the settings that identify a run were edited after the preparation.

    Raises:
        ResumeError: config.json was edited.
    """
    if config.identity:
        require_identity(config, config.identity, "when it was prepared")


def require_identity(config: RunConfig, expected: str, source: str, step: int = 0, differing: str = "") -> None:
    """Raise an error if a run has other settings than its checkpoint, contract, attempt or preparation.

    Args:
        expected: `identity` of the source after `step`.
        source: the source, for the error.
        differing: the settings that differ, if they are known.

    Raises:
        ResumeError: config.json was edited, or the source belongs to another run.
    """
    found = identity(config, step)
    if found != expected:
        raise ResumeError(
            f"run {config.run_id} has other settings than {source}",
            found=differing or f"identity {found}",
            expected=f"identity {expected}; only placement, layout, checkpoints and stopping rules may change",
            remedy="do not edit config.json or copy files between runs: `plinth run` writes config.json again from the "
            "recipe, where another setting makes another run",
        )
