"""State machine of the guard: consecutive findings become an intervention. All of its state is in checkpoints.

On GPUs the host reads a step's numbers while the next step runs. The numbers of step n therefore take effect from step
n + 2 on. CPUs do the same, so that a run decides the same on any device and after any resume. The host judges a step
by the limits that were set on the device for its update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from plinth.training.guard.rules import (
    ACTIONS,
    LAYER_WINDOW,
    TEXT_RULES,
    Finding,
    Intervention,
    Limits,
    Rolling,
    TrainedStep,
    judge,
    judge_experts,
    judge_layers,
    limit_of,
    limits,
)
from plinth.training.parameters.guard import GuardParameters, GuardRule

#: Steps between an observation and its effect.
LAG = 2

#: Rules that judge a step before its update.
RULES_BEFORE_UPDATE = ("nonfinite", "loss_spike", "gradient_spike")


class Guard:
    """State machine that judges every trained step of a run, in order.

    Args:
        policy: `training.guard` of the recipe.
    """

    def __init__(self, policy: GuardParameters) -> None:
        self.policy = policy
        self.rollbacks: list[Intervention] = []  # all rollbacks of the run, also those after the state was saved
        self.lowered: list[Intervention] = []
        self._losses, self._norms = Rolling(policy.window_steps), Rolling(policy.window_steps)
        self._gradients: dict[str, Rolling] = {}
        self._activations: dict[str, Rolling] = {}
        self._next_limits = [Limits() for _ in range(LAG)]  # limits of the next steps that are trained
        self._streaks: dict[str, list[int]] = {}  # rule -> first step, suspicious steps in a row
        self._skipped: list[int] = []
        self._on_probation_skipped: list[int] = []  # steps on probation whose update was skipped, the newest

    # -- before a step

    def leaves_out(self, step: int) -> Intervention | None:
        """Return the rollback whose window contains this step."""
        return next((made for made in reversed(self.rollbacks) if made.first <= step <= made.last), None)

    def update_limits(self, step: int, in_flight: int = 0, rows: int = 0) -> Limits:
        """Return the limits for the next step's update.

        The limits come from the rules that skip updates. Just after a skipped window they come from all rules.

        A window ends at the step at which the guard was sure, which may be before the bad data ends. The rollback
        restored the parameters, so bad steps after the window can be detected. Steps are therefore on probation until
        two steps pass.

        Args:
            in_flight: number of trained steps before this one that are not recorded yet, fewer than `LAG`.
            rows: number of rows in the step's batch, in sequences.
        """
        if not self.policy.enabled:
            return Limits()
        limit, probation = self._next_limits[in_flight], self._on_probation(step)
        loss, norm = self.policy.loss_spike.action, self.policy.gradient_spike.action
        return Limits(
            loss=limit.loss if loss == "skip" or (probation and loss != "off") else math.inf,
            grad_norm=limit.grad_norm if norm == "skip" or (probation and norm == "rollback") else math.inf,
            rows=limit_of(self.policy.screening, rows),
        )

    def factor(self, step: int) -> float:
        """Return the factor by which the guard multiplies a step's learning rate."""
        steps, factor = self.policy.lr_steps, 1.0
        for made in self.lowered:
            if made.last + LAG <= step and (not steps or step < made.last + LAG + steps):
                factor *= made.factor
        for made in self.rollbacks:
            if made.last < step:
                factor *= made.factor
        return factor

    # -- after a step

    def record(self, seen: TrainedStep) -> list[Intervention]:
        """Judge a trained step, and return the interventions, the most severe last."""
        if not self.policy.enabled:
            return []
        found = [*seen.screened, *(() if self.kept_back(seen) else self._judge(seen))]
        if seen.finite and not seen.vetoed:  # a long stretch of bad data must not become the level it is judged by
            self._losses.add(seen.loss)
            self._norms.add(seen.grad_norm)
        self._next_limits = [*self._next_limits[1:], limits(self.policy, self._losses, self._norms)]
        self._update_streaks(seen, found)
        made = [one for finding in found if (one := self._decide(seen, finding)) is not None]
        return self._hardest(made)

    def kept_back(self, seen: TrainedStep) -> bool:
        """Return True if screening skipped the step's update. The step's loss and gradient are then not judged."""
        return seen.vetoed and any(self.policy.rule(finding.rule).action != "warn" for finding in seen.screened)

    def set_rollbacks(self, made: Iterable[Intervention]) -> None:
        """Set all rollbacks of the run, including rollbacks after this state was saved."""
        self.rollbacks = list(made)

    # -- state

    def state(self) -> dict[str, Any]:
        """Return the JSON state from which a resumed run makes the same decisions."""
        return {
            "losses": self._losses.values,
            "norms": self._norms.values,
            "gradients": {layer: window.values for layer, window in self._gradients.items()},
            "activations": {layer: window.values for layer, window in self._activations.items()},
            "ahead": [[_null(limit.loss), _null(limit.grad_norm)] for limit in self._next_limits],
            "streaks": self._streaks,
            "vetoed": self._skipped,
            "probation": self._on_probation_skipped,
            "rollbacks": [_saved(made) for made in self.rollbacks],
            "lowered": [_saved(made) for made in self.lowered],
        }

    @classmethod
    def restored(cls, policy: GuardParameters, state: Mapping[str, Any]) -> Guard:
        """Create a guard from the state in a checkpoint."""
        guard = cls(policy)
        guard._losses = Rolling(policy.window_steps, state["losses"])
        guard._norms = Rolling(policy.window_steps, state["norms"])
        guard._gradients = {layer: Rolling(LAYER_WINDOW, values) for layer, values in state["gradients"].items()}
        guard._activations = {layer: Rolling(LAYER_WINDOW, values) for layer, values in state["activations"].items()}
        guard._next_limits = [Limits(loss=_inf(loss), grad_norm=_inf(norm)) for loss, norm in state["ahead"]]
        guard._streaks = {rule: list(streak) for rule, streak in state["streaks"].items()}
        guard._skipped, held = list(state["vetoed"]), state["probation"]
        # older checkpoints have the last step on probation as a number
        guard._on_probation_skipped = [held - LAG] if isinstance(held, int) else list(held)
        guard.rollbacks = [Intervention.of(made) for made in state["rollbacks"]]
        guard.lowered = [Intervention.of(made) for made in state["lowered"]]
        return guard

    # -- inside

    def _judge(self, seen: TrainedStep) -> list[Finding]:
        """Return the findings about loss, gradient and layers of a step."""
        by_layer = (
            judge_layers(self.policy.layer_gradient, "layer_gradient", seen.gradients, self._gradients),
            judge_layers(self.policy.activations, "activations", seen.activations, self._activations),
            judge_experts(self.policy.idle_experts, seen.idle_experts),
        )
        return [*judge(seen, self._next_limits[0]), *(finding for finding in by_layer if finding is not None)]

    def _on_probation(self, step: int) -> bool:
        """Return True if a step is on probation: soon after a skipped window, or after an update that was skipped on
        probation.

        Two steps must then pass. The outcome of a step is known `LAG` steps later.
        """
        ends = [made.last for made in self.rollbacks if made.first <= made.last < step]
        return any(step <= end + LAG + 1 for end in ends) or any(
            skipped + LAG <= step <= skipped + LAG + 1 for skipped in self._on_probation_skipped
        )

    def _hardest(self, made: list[Intervention]) -> list[Intervention]:
        """Return all warnings, and only the most severe other action. Two rules that detect the same problem then cause
        only one action."""
        warnings = [one for one in made if one.action == "warn"]
        acting = [one for one in made if one.action != "warn"]
        if not acting:
            return warnings
        hardest = max(acting, key=lambda one: ACTIONS.index(one.action))  # the first rule wins ties
        if hardest.action == "lower_lr":
            self.lowered.append(hardest)
        return [*warnings, hardest]

    def _update_streaks(self, seen: TrainedStep, found: list[Finding]) -> None:
        """Lengthen the streaks of rules with findings; end the streaks of other rules that judged the step."""
        unjudged = set(self._streaks) - set(TEXT_RULES) if self.kept_back(seen) else _unmeasured(seen)
        going_on = {finding.rule for finding in found} | unjudged
        self._streaks = {rule: streak for rule, streak in self._streaks.items() if rule in going_on}
        for finding in found:
            self._streaks.setdefault(finding.rule, [seen.step, 0])[1] += 1
        if seen.vetoed:
            recent = seen.step - self.policy.window_steps
            self._skipped = [step for step in self._skipped if step > recent] + [seen.step]

    def _decide(self, seen: TrainedStep, finding: Finding) -> Intervention | None:
        """Return the intervention that the policy requires for a finding at this step, or None."""
        rule = self.policy.rule(finding.rule)
        if rule.action == "off":
            return None
        kept_back = finding.rule in RULES_BEFORE_UPDATE and (rule.action == "skip" or self._on_probation(seen.step))
        if seen.vetoed and (kept_back or (finding.rule in TEXT_RULES and rule.action == "skip")):
            return self._skip(seen, finding, rule)
        count = self._streaks[finding.rule][1]
        if count < rule.confirmations or (rule.action == "warn" and count > rule.confirmations):
            return None
        if rule.action == "rollback":
            return self._roll_back(seen, finding)
        if rule.action == "lower_lr":
            self._streaks.pop(finding.rule)
            made = self._intervention(
                seen, finding, "lower_lr", number=len(self.lowered) + 1, factor=self.policy.lr_factor
            )
            return self._bounded(made, self.policy.max_lowered, "the learning rate was lowered as often as allowed")
        return self._intervention(seen, finding, rule.action)

    def _skip(self, seen: TrainedStep, finding: Finding, rule: GuardRule) -> Intervention:
        """Return an intervention that skips this step. The update was not applied, so nothing must be undone."""
        self._streaks.pop(finding.rule, None)
        reason = ""
        if rule.action != "skip":
            reason = "just after a window"
            self._on_probation_skipped = [*self._on_probation_skipped[-LAG:], seen.step]
        made = self._intervention(seen, finding, "skip", number=len(self._skipped), reason=reason)
        return self._bounded(made, self.policy.max_skipped_updates, "too many updates were skipped")

    def _roll_back(self, seen: TrainedStep, finding: Finding) -> Intervention:
        """Return a rollback that skips all steps from the first finding of any rule to this step."""
        acting = (rule for rule in self._streaks if rule not in TEXT_RULES and self.policy.rule(rule).action != "off")
        onset = min(self._streaks[rule][0] for rule in acting)
        first, last = max(1, onset - self.policy.skip_before), seen.step + self.policy.skip_after
        number, factor = len(self.rollbacks) + 1, self.policy.rollback_lr_factor
        made = self._intervention(seen, finding, "rollback", number=number, factor=factor)
        return self._bounded(
            made.model_copy(update={"first": first, "last": last}),
            self.policy.max_rollbacks,
            "the run was rolled back as often as allowed",
        )

    def _intervention(self, seen: TrainedStep, finding: Finding, action: Any, **more: Any) -> Intervention:
        window = {"step": seen.step, "first": seen.step, "last": seen.step}
        return Intervention(**finding.model_dump(), **window, action=action, **more)

    @staticmethod
    def _bounded(made: Intervention, most: int, reason: str) -> Intervention:
        if made.number <= most:
            return made
        return made.model_copy(update={"action": "stop", "number": 1, "factor": 1.0, "reason": f"{reason} ({most})"})


def _unmeasured(seen: TrainedStep) -> set[str]:
    """Return the rules whose streaks this step does not change, because the step has no measurements by layer."""
    rules = {
        "layer_gradient": seen.gradients,
        "activations": seen.activations,
        "idle_experts": seen.idle_experts,
    }
    return {rule for rule, measured in rules.items() if measured is None}


def _saved(made: Intervention) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in made.event().items()
    }


def _null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _inf(value: float | None) -> float:
    return math.inf if value is None else value
