"""Training hooks: features of a run that need no code in the training loop.

    TrainingHook   the record of a feature, registered as an entry point `plinth.training_hooks`; imports no torch
    RankHook       the part on each rank (rank_hook): optional methods that the loop calls

Order of calls:

    recipe        problems, models, assets                inputs of the run, and checks of the rest of the recipe
    preparation   prepare                                 converts parameters to the state in the run's configuration
    start         attach, then reset or restore           a new engine; the first step, or a checkpoint
    step          before_step, inputs, loss, after_backward, after_step; or gradient in place of inputs and loss
    between       due, settle (in a replay: adopt)        pending work of a round, or at the end of the run
    checkpoint    state, saved
    manifest      inputs, facts

A built-in hook has its own section in `training`, and a section for its state in `run`, the run's configuration. A
hook from another package is listed in `training.extensions`, and its origin is part of the run's identity. See
docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from plinth.errors import ExtensionError, RecipeError
from plinth.extensions import Catalogue, NoParams, validated
from plinth.records import Frozen

#: Fields of a checkpoint's state and of a step event, which hooks must not use as names.
RESERVED = (
    *("loss_ema", "guard", "slices", "step", "seq", "time", "event", "loss", "grad_norm", "lr", "batch", "tokens"),
    *("tokens_per_s", "data_wait_s", "step_s", "parts", "besides", "slowest", "layers", "experts", "vetoed"),
    "redone",
    "replay_checks",
)


class Hooked(Protocol):
    """Object with hooks: a recipe's `training` section, which has their parameters, or a run's configuration, which has
    their states."""

    @property
    def extensions(self) -> Mapping[str, Mapping[str, Any]]: ...


def no_problems(training: Any, params: Any) -> tuple[()]:
    """Return no problems. This is the default `problems` of a hook that works with every recipe."""
    return ()


def nothing(params: Any) -> dict[str, Any]:
    """Return an empty mapping. This is the default `models` and `inputs` of a hook that reads no models or inputs."""
    return {}


def no_assets(params: Any) -> tuple[()]:
    """Return no assets. This is the default `assets` of a hook that reads no assets."""
    return ()


def no_facts(history: Any, monitor: Mapping[str, Any]) -> dict[str, Any]:
    """Return no facts. This is the default `facts` of a hook without facts."""
    return {}


@dataclass(frozen=True, kw_only=True)
class TrainingHook:
    """A feature of training. Its module imports no torch, because recipes, plans and the pipeline also use it.

    Args:
        name: key of the hook's parameters in recipes and of its state in checkpoints.
        rank: `(configuration, rank, state)` -> the `RankHook` for a rank.
        params: pydantic model of the hook's recipe parameters.
        state: pydantic model of the state that `prepare` returns, if it differs from `params`.
        prepare: `(preparation, params)` -> state, which is part of the run's configuration and identity.
        problems: `(training, params)` -> reasons why the recipe cannot run.
        models: `(params)` -> models that the run reads, by asset; they are verified and hashed like `training.initial`.
        assets: `(params)` -> other assets that the hook reads.
        inputs: `(state)` -> digests of all inputs that the hook reads, by asset.
        draws: `(configuration, state)` -> the `Steps` that are actually taken, if they differ from the data order.
        reads: `(configuration, place, state)` -> `(step, rows)` -> additional input of each micro batch of a step. The
            loading thread reads it into `StepBatch.hook_inputs`.
        facts: `(timeline or None, state of the checkpoint)` -> statistics for the run's manifest, or without a timeline
            for the checkpoint's manifest.
        unidentified: parameters that are not part of the run's identity.
        undivided: keys of `training.parallel` that must not divide the model; for `zero_stage` the maximum is then 1.
        one_by_one: True if the hook computes its gradient from single sequences.
        position: order among hooks, the lowest first.
    """

    name: str
    rank: Callable[[Any, Any, Any], Any]
    params: type[Frozen] = NoParams
    state: type[Frozen] | None = None
    prepare: Callable[[Any, Any], Frozen] | None = None
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


def asked(section: Hooked, *, usable: bool = False) -> list[tuple[TrainingHook, Any]]:
    """Return the hooks of a recipe's `training` section with their parameters, or of a run with their states, in order.

    Args:
        usable: True to leave out hooks that are not installed or cannot be used.

    Raises:
        RecipeError, ExtensionError: a hook is not installed, cannot be used, or rejects its parameters.
    """
    own = [(HOOKS[name], getattr(section, name)) for name in HOOKS.built_in if getattr(section, name, None) is not None]
    prepared = hasattr(section, "run_id")
    for name, raw in sorted(section.extensions.items()):
        try:
            hook = HOOKS.find(name)
            model = (prepared and hook.state) or hook.params
            own.append((hook, validated(model, raw, f"training.extensions.{name}")))
        except (RecipeError, ExtensionError):
            if not usable:
                raise
    return sorted(own, key=lambda one: (one[0].position, one[0].name))


def origins(section: Hooked) -> dict[str, str]:
    """Return the package and version of each hook that is not built in. They are part of a run's identity."""
    return {name: str(HOOKS.origin(name)) for name in sorted(section.extensions)}


def models(training: Hooked) -> dict[str, Any]:
    """Return the models that the hooks of a recipe read, by asset."""
    return {asset: weights for hook, params in asked(training) for asset, weights in hook.models(params).items()}


def assets(training: Hooked) -> tuple[str, ...]:
    """Return the names of all assets that the hooks of a recipe read."""
    return tuple(asset for hook, params in asked(training) for asset in (*hook.models(params), *hook.assets(params)))


def undivided(training: Hooked) -> set[str]:
    """Return the keys of `training.parallel` that must not divide the model because a hook forbids it."""
    return {key for hook, _ in asked(training) for key in hook.undivided}


def one_by_one(section: Hooked) -> bool:
    """Return True if the gradient of a step is computed from single sequences."""
    return any(hook.one_by_one for hook, _ in asked(section))
