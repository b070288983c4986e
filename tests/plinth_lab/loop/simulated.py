"""Simulated scores of a search: runs with training noise and document noise, and a scorer that makes them."""

from collections.abc import Mapping

import numpy as np

from plinth.errors import RecipeError
from plinth_lab.experiments.effects import ArmScores
from plinth_lab.loop.question import ArmPair
from plinth_lab.loop.run import PairScores, RunCost

DOCUMENTS = 10
NAMES = np.array([f"{at:032x}" for at in range(DOCUMENTS)])
SLICES = np.array(["web"] * DOCUMENTS)
BYTES = np.linspace(500.0, 1500.0, DOCUMENTS)
#: Standard deviation of training noise of one run, in bits per byte; that of a gain is larger by sqrt(2).
NOISE = 0.002
GAIN_NOISE = NOISE * 2**0.5


def run(arm: str, seed: int, value: float, rng: np.random.Generator | None = None) -> ArmScores:
    """Return the scores of a run with `value` bits per byte; with noise over documents that leaves the mean alone."""
    noise = np.zeros(DOCUMENTS) if rng is None else rng.normal(size=DOCUMENTS)
    bits = BYTES * value + noise - noise.mean()
    return ArmScores(arm, "one", seed, "finished", "", NAMES, SLICES, BYTES, bits, tokens=100)


def trained(arm: str, seeds: tuple[int, ...], value: float, rng: np.random.Generator) -> dict[int, ArmScores]:
    """Return runs of an arm whose true value is `value`."""
    return {seed: run(arm, seed, value + rng.normal(0, NOISE), rng) for seed in seeds}


class Simulation:
    """A scorer without training: every overlay has a true gain, and a run is the same whenever it is asked for.

    `later` are losses of an arm in the runs that confirm it, which are those with other seeds than its first runs.
    """

    def __init__(self, gains: Mapping[str, float], later: Mapping[str, float] | None = None) -> None:
        self.gains, self.later = gains, later or {}
        self.first_seeds: dict[str, int] = {}
        self.scored: list[ArmPair] = []
        self.value = {"base": 1.0}

    def plan(self, pair: ArmPair) -> dict[str, RunCost]:
        if pair.arm not in self.gains:
            raise RecipeError(f"the overlay of {pair.arm} is invalid")
        arms = (pair.base, pair.arm)
        return {f"{arm}/{pair.size}-s{seed}": RunCost(100, 1e6) for arm in arms for seed in pair.seeds}

    def score(self, pair: ArmPair) -> PairScores:
        self.scored.append(pair)
        self.first_seeds.setdefault(pair.arm, pair.seeds[0])
        self.value[pair.arm] = self.value[pair.base] - self.gains[pair.arm]
        return PairScores(self._runs(pair.base, pair, 0.0), self._runs(pair.arm, pair, self.later.get(pair.arm, 0.0)))

    def _runs(self, arm: str, pair: ArmPair, worse: float) -> dict[int, ArmScores]:
        def of(seed: int) -> ArmScores:
            rng = np.random.default_rng([seed, *arm.encode()])
            value = self.value[arm] + (worse if pair.seeds[0] != self.first_seeds[pair.arm] else 0.0)
            return run(arm, seed, value + rng.normal(0, NOISE), rng)

        return {seed: of(seed) for seed in pair.seeds}
