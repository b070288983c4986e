"""Training hooks: features that take part in a run without a line in the loop.

    TrainingHook   the record of a feature, found by entry points `plinth.training_hooks`; imports no torch
    RankHook       its part on a rank: methods that the loop calls, each of which may be left out
    RankHooks      those of a run, in a fixed order; a step calls only methods that a hook has

What is called, in this order:

    recipe        problems, models, assets                what the run reads, and whether the rest of the recipe fits
    preparation   prepare                                 parameters become the state in the run's configuration
    start         attach, then reset or restore           a new engine; the first step, or a checkpoint
    step          before_step, inputs, loss, after_backward, after_step; or gradient in place of inputs and loss
    between       due, settle (in a replay: adopt)        what a round or the end owes
    checkpoint    state, saved
    manifest      inputs, facts

A hook of the ring has a section of its own below `training`, and one below `run`, the run's configuration, for its
state. One of another package is named below `training.extensions`, and its origin enters the identity of the run. See
docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plinth.errors import ExtensionError, RecipeError, TrainingError
from plinth.extensions import Catalogue, NoParams, validated
from plinth.records import Frozen, Manifest

if TYPE_CHECKING:
    from torch import Tensor

    from plinth.compute.context import Context
    from plinth.training.config import RunConfig
    from plinth.training.data import StepBatch
    from plinth.training.engine.batch_expansion import ModelInput
    from plinth.training.engine.engine import TrainingEngine
    from plinth.training.engine.ranks import Rank
    from plinth.training.parameters.initial import InitialWeights
    from plinth.training.parameters.run import Training
    from plinth.training.telemetry.timeline import History
    from plinth.training.trainer import Measured

#: Fields of a checkpoint's state and of the event of a step, which no hook may be named like.
RESERVED = (
    *("loss_ema", "guard", "slices", "step", "seq", "time", "event", "loss", "grad_norm", "lr", "batch", "tokens"),
    *("tokens_per_s", "data_wait_s", "step_s", "parts", "besides", "slowest", "layers", "vetoed", "redone"),
)


@dataclass(frozen=True)
class Preparation:
    """What a run is prepared from.

    Args:
        read: manifests of the assets that hooks read, by name.
        earlier: the configuration of the run, where it has begun.
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


class RankHook:
    """The part of a feature on one rank. Override what it needs; a method that is left out costs a step nothing.

    All ranks call the same methods in the same order, so a method may be a collective. Nothing in a step may wait for
    the device (`.item()`, `print` of a tensor) but `after_step`, whose step has been read.
    """

    def attach(self, engine: TrainingEngine) -> None:
        """A new engine: at the start, and after a rollback to the beginning."""

    def reset(self) -> None:
        """The run is before its first step again."""

    def state(self) -> Mapping[str, Any]:
        """What a checkpoint holds of the feature: plain data, a function of the steps taken."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state in a checkpoint."""

    def saved(self, state: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        """The event of the timeline, with its fields, after a checkpoint with this state."""

    def before_step(self, step: int) -> None:
        """Before a step takes its batch.

        Raises:
            TrainingError: it must not be taken.
        """

    def inputs(self, batch: StepBatch, micro: int, inputs: ModelInput, whole: bool) -> Mapping[str, Any]:
        """Further arguments of the model's forward pass on micro batch number `micro`, from 0.

        Args:
            inputs: the micro batch on the device.
            whole: its rows are of one document each.
        """
        return {}

    def loss(self, loss: Tensor, inputs: ModelInput) -> Tensor:
        """The loss of a micro batch that is trained on, from the loss of the model: a mean over its scored targets."""
        return loss

    def gradient(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """In place of the passes over micro batches: the loss of the step (FP64), and the scalar to go backward from.

        One hook of a run may have it; the others' `inputs` and `loss` are then not asked.
        """
        raise AssertionError("a hook that has this is asked")

    def after_backward(self, loss: Tensor) -> None:
        """The gradient of the step is complete, and no update made yet.

        Args:
            loss: of this rank (FP64, on the device).
        """

    def after_step(self, measured: Measured) -> Mapping[str, float]:
        """Numbers of a step that was read, for the timeline and all sinks; there they are `NAME/number`."""
        return {}

    def due(self, step: int) -> bool:
        """True if the run owes something after this step before it may go on, or end; False once that is settled."""
        return False

    def settle(self, step: int, asked_to_stop: Callable[[], int]) -> tuple[str, Mapping[str, Any]] | int:
        """Do what is due after a step; the event of the timeline, or the signal that ended the wait. A collective.

        Args:
            asked_to_stop: the signal that this rank has received, or 0.
        """
        raise AssertionError("a hook that has this is asked")

    def adopt(self, step: int) -> Any:
        """In a replay: take the outcome of what was settled after this step."""


def no_problems(training: Any, params: Any) -> tuple[()]:
    """`problems` of a hook that goes with every run."""
    return ()


def nothing(params: Any) -> dict[str, Any]:
    """`models` and `inputs` of a hook that reads none."""
    return {}


def no_assets(params: Any) -> tuple[()]:
    """`assets` of a hook that reads none."""
    return ()


def no_facts(history: History | None, monitor: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` of a hook that has none."""
    return {}


@dataclass(frozen=True, kw_only=True)
class TrainingHook:
    """A feature of training. Its module imports no torch: recipes, plans and the pipeline ask it too.

    Args:
        name: the key of its parameters, and of its state in checkpoints.
        rank: `(configuration, rank, state)` -> its part on a rank.
        params: what the recipe may say.
        state: what `prepare` makes of them, if it makes something else.
        prepare: `(preparation, params)` -> state, in the run's configuration and identity.
        problems: `(training, params)` -> why the run cannot be as the recipe says.
        models: `(params)` -> models that the run reads, by asset: proved and hashed as `training.initial` is.
        assets: `(params)` -> further assets that it reads.
        inputs: `(state)` -> digests of all that it reads, by asset.
        draws: `(configuration, state)` -> the `Steps` that are really taken, where they are not those of the order.
        reads: `(configuration, place, state)` -> `(step, rows)` -> what is read beside each micro batch of a step, by
            the thread that reads batches; in `StepBatch.beside`.
        facts: `(timeline or None, state of the checkpoint)` -> statistics of the run's manifest, and without the
            timeline of its checkpoint's.
        unidentified: parameters that bear no identity.
        undivided: keys of `training.parallel` that must not divide the model: `zero_stage` is then at most 1.
        one_by_one: its gradient is made of single sequences.
        position: hooks of a lower one come first.
    """

    name: str
    rank: Callable[[Any, Any, Any], RankHook]
    params: type[Frozen] = NoParams
    state: type[Frozen] | None = None
    prepare: Callable[[Preparation, Any], Frozen] | None = None
    problems: Callable[[Any, Any], Iterable[str]] = no_problems
    models: Callable[[Any], Mapping[str, Any]] = nothing
    assets: Callable[[Any], tuple[str, ...]] = no_assets
    inputs: Callable[[Any], Mapping[str, str]] = nothing
    draws: Callable[[Any, Any], Any] | None = None
    reads: Callable[[Any, Any, Any], Callable[[int, int], tuple[Any, ...]] | None] | None = None
    facts: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] = no_facts
    unidentified: tuple[str, ...] = ()
    undivided: tuple[str, ...] = ()
    one_by_one: bool = False
    position: int = 100


HOOKS = Catalogue("plinth.training_hooks", "training hook", TrainingHook, {}, reserved=RESERVED)


def asked(section: Training | RunConfig, *, usable: bool = False) -> list[tuple[TrainingHook, Any]]:
    """The hooks of a recipe's section with their parameters, or of a run with their states, in their order.

    Args:
        usable: leave those out that cannot be used.

    Raises:
        RecipeError, ExtensionError: one of a package is not installed, cannot be used, or does not take the parameters.
    """
    own = [(HOOKS[name], getattr(section, name)) for name in HOOKS.built_in if getattr(section, name, None) is not None]
    prepared = "run_id" in type(section).model_fields
    for name, raw in sorted(section.extensions.items()):
        try:
            hook = HOOKS.find(name)
            model = (prepared and hook.state) or hook.params
            own.append((hook, validated(model, raw, f"training.extensions.{name}")))
        except (RecipeError, ExtensionError):
            if not usable:
                raise
    return sorted(own, key=lambda one: (one[0].position, one[0].name))


def origins(section: Training | RunConfig) -> dict[str, str]:
    """The packages of the hooks that are not built in, by hook: part of a run's identity."""
    return {name: str(HOOKS.origin(name)) for name in sorted(section.extensions)}


def models(training: Training) -> dict[str, InitialWeights]:
    """Models that the hooks of a recipe read, by asset."""
    return {asset: weights for hook, params in asked(training) for asset, weights in hook.models(params).items()}


def assets(training: Training) -> tuple[str, ...]:
    """All that the hooks of a recipe read, by asset."""
    return tuple(asset for hook, params in asked(training) for asset in (*hook.models(params), *hook.assets(params)))


def undivided(training: Training) -> set[str]:
    """Keys of `training.parallel` that must not divide the model, because of a hook."""
    return {key for hook, _ in asked(training) for key in hook.undivided}


def one_by_one(section: Training | RunConfig) -> bool:
    """True if the gradient of a step is made of single sequences."""
    return any(hook.one_by_one for hook, _ in asked(section))


class RankHooks:
    """The hooks of a run on one rank, in their order. An attribute has the methods of that name that hooks have."""

    def __init__(self, hooks: Mapping[str, RankHook]) -> None:
        self._hooks = dict(hooks)
        self.before_step = tuple(self._having("before_step").values())
        self.inputs = tuple(self._having("inputs").values())
        self.loss: tuple[Callable[[Tensor, ModelInput], Tensor], ...] = tuple(self._having("loss").values())
        self.after_backward = tuple(self._having("after_backward").values())
        self._after_step, self._state = self._having("after_step"), self._having("state")
        self._due = [self._hooks[name] for name in self._having("due")]
        gradients = self._having("gradient")
        if len(gradients) > 1:
            raise TrainingError(
                "two features make the gradient of a step", found=", ".join(gradients), expected="one of them"
            )
        self.gradient: Callable[[StepBatch], tuple[Tensor, Tensor]] | None = next(iter(gradients.values()), None)

    def __getitem__(self, name: str) -> RankHook:
        return self._hooks[name]

    def attach(self, engine: TrainingEngine) -> None:
        """Tell all of a new engine."""
        for hook in self._hooks.values():
            hook.attach(engine)

    def reset(self) -> None:
        """Tell all that the run is before its first step."""
        for hook in self._hooks.values():
            hook.reset()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of them, by name."""
        return {name: state() for name, state in self._state.items()}

    def restore(self, monitor: Mapping[str, Any]) -> None:
        """Go on from the state of a checkpoint."""
        for name in self._state:
            self._hooks[name].restore(monitor[name])

    def saved(self, monitor: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """Events after a checkpoint with this state."""
        return [event for name in self._state if (event := self._hooks[name].saved(monitor[name])) is not None]

    def after_step(self, measured: Measured) -> dict[str, Any]:
        """Numbers of a step, by hook."""
        return {name: numbers(measured) for name, numbers in self._after_step.items()}

    def due(self, step: int) -> RankHook | None:
        """The first that the run owes something after a step."""
        return next((hook for hook in self._due if hook.due(step)), None)

    def _having(self, method: str) -> dict[str, Callable[..., Any]]:
        return {
            name: getattr(hook, method)
            for name, hook in self._hooks.items()
            if getattr(type(hook), method) is not getattr(RankHook, method)
        }


NO_HOOKS = RankHooks({})


def open_hooks(config: RunConfig, rank: Rank) -> RankHooks:
    """The hooks of a run, on a rank.

    Raises:
        TrainingError: this machine has another version of a package than the one that the run was prepared with.
        ExtensionError, RecipeError: one cannot be used.
    """
    ours, prepared = origins(config), config.provenance.get("extensions", {})
    if ours != prepared:
        raise TrainingError(
            "the training hooks of this machine are not those of the run",
            found=", ".join(ours.values()) or "none",
            expected=", ".join(prepared.values()) or "none",
            remedy="install the same versions where the ranks run, or start another run",
        )
    return RankHooks({hook.name: hook.rank(config, rank, state) for hook, state in asked(config)})
