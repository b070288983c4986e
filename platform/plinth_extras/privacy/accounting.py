"""Epsilon by Opacus' accountant: Rényi divergences of the sampled Gaussian mechanism (Mironov, arXiv:1908.10530).

    python -m plinth_extras.privacy.accounting < question.json      print a run's noise as one JSON object

Opacus imports torch, so the control plane runs it in a separate process. Neighboring data sets differ in one sequence.
Every step that has read data counts, even without an update.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from plinth import processes
from plinth.errors import RecipeError, TrainingError
from plinth_extras.privacy import UNIT, Privacy, PrivacyState


def epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Return the epsilon that a number of steps spends."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, sample_rate, steps)] if steps else []
    return float(accountant.get_epsilon(delta))


def resolve(params: Privacy, sample_rate: float, steps: int) -> dict[str, float]:
    """Return the noise multiplier of a run, and the epsilon that all its steps spend.

    Raises:
        RecipeError: the steps would exceed the budget, or no amount of noise is enough for the budget.
    """
    from opacus.accountants.utils import get_noise_multiplier

    noise = params.noise_multiplier
    if noise is None:
        given = {"target_epsilon": params.epsilon, "target_delta": params.delta, "sample_rate": sample_rate}
        try:
            noise = float(get_noise_multiplier(**given, steps=steps, accountant="rdp"))
        except ValueError as error:
            raise RecipeError(
                "training.privacy.epsilon is too low for this run",
                found=f"epsilon {params.epsilon:g}, {steps} steps, a sampling rate of {sample_rate:.4g}: {error}",
                expected="a budget that can be met with enough noise",
                remedy="raise epsilon, train fewer steps, or add sequences, which lowers the sampling rate",
            ) from error
    spent = epsilon(noise, sample_rate, steps, params.delta)
    if spent > params.epsilon:
        raise RecipeError(
            f"{steps} steps spend more than training.privacy.epsilon",
            found=f"epsilon {spent:.4g} with noise_multiplier {noise:g} and a sampling rate of {sample_rate:.4g}",
            expected=f"at most {params.epsilon:g}",
            remedy="remove or raise noise_multiplier, raise epsilon, or train fewer steps",
        )
    return {"noise_multiplier": noise, "epsilon": spent}


def resolved_apart(params: Privacy, sample_rate: float, steps: int) -> dict[str, float]:
    """Run `resolve` in a separate process, for callers that must not import torch.

    Raises:
        RecipeError: `resolve` raised this error, or Opacus is not installed.
    """
    question = {"params": params.model_dump(), "sample_rate": sample_rate, "steps": steps}
    command = processes.python("plinth_extras.privacy.accounting")
    done = processes.run(command, input=json.dumps(question), capture_output=True, text=True)
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise RecipeError(
            "the privacy accountant of training.privacy failed to run",
            found=done.stderr.strip().splitlines()[-1:] or f"exit status {done.returncode}",
            expected="the extra dp",
            remedy="pip install 'plinth[dp]'",
        ) from None
    if "what" in answer:
        raise RecipeError(**answer)
    return answer


class PrivacyBudget:
    """Privacy budget of a run, and the steps that have spent it."""

    def __init__(self, state: PrivacyState) -> None:
        self._state = state
        self.steps = 0

    def spend(self, step: int) -> None:
        """Add a step to the spent budget before the step reads data.

        A repeated step has the same noise and spends no further budget.

        Raises:
            TrainingError: the step would exceed the budget.
        """
        if step <= self.steps:
            return
        state = self._state
        if self._of(step) > state.epsilon:
            raise TrainingError(
                f"step {step} would spend more than the privacy budget of the run",
                found=f"epsilon {self._of(step):.4g} after the step, {self._of(step - 1):.4g} before",
                expected=f"at most {state.epsilon:g} at delta {state.delta:g}",
                remedy="use the last checkpoint, or start another run with a larger budget or more noise",
            )
        self.steps = step

    def state(self) -> dict[str, Any]:
        """Return the privacy parameters, the number of steps and the spent epsilon, for the run's evidence."""
        names = {"delta", "clip_norm", "noise_multiplier", "sample_rate"}
        spent = {"unit": UNIT, "steps": self.steps, "epsilon": self._of(self.steps)}
        return {**spent, **self._state.model_dump(include=names)}

    def _of(self, steps: int) -> float:
        return epsilon(self._state.noise_multiplier, self._state.sample_rate, steps, self._state.delta)


def main() -> None:
    """Read privacy parameters and a number of steps from stdin as JSON; print the noise multiplier and epsilon."""
    question = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = resolve(
            Privacy.model_validate(question["params"]), question["sample_rate"], question["steps"]
        )
    except RecipeError as error:
        fields = {name: getattr(error, name) for name in ("what", "found", "expected", "remedy")}
        answer = {name: None if value is None else str(value) for name, value in fields.items()}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
