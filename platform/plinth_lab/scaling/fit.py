"""Fit of the scaling law to a ladder's runs, with intervals, and a check that its constants are identifiable.

The runs come from a table with columns `params`, `tokens`, `loss`, an optional `trunk`, and any number of probes.

The objective is the published one (Hoffmann et al. 2203.15556, section D.2): Huber's function of the residuals of ln L,
*summed* over runs. If it is the mean instead of the sum, optimizers stop early (Besiroglu et al. 2404.10102). Starting
points come from variable projection: for each alpha and beta in a grid, E, A and B solve one non-negative least squares
problem. From the best points, the exact objective is minimized over all five constants (`descent`).

Isoloss parabolas ("approach 2") are not used, because they move the optimum by 6 to 54% if the grid of runs is not
centered on the optimum.

Intervals are bootstrapped over runs with fractional weights (Rubin 1981; Xu et al. 2020). Each draw weights every run
by an exponential variate, so no draw loses one of the few sizes, as draws with replacement can. All horizons of one
training run share one weight (`ScalingRun.trunk`).

    R  runs
    K  draws
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from plinth.errors import RequestError
from plinth.evaluation.statistics import Estimate, from_replicates
from plinth.records import Frozen
from plinth_lab.scaling.law import CORRECTED, Bools, Floats, ScalingLaw, Surface, descend

DELTA = 1e-3
DRAWS = 4_000
#: Exponents are looked for between these; a minimum there is `GRID_EDGE`.
EXPONENTS = (0.02, 2.5)
GRID = 12
STARTS = 9
#: Budgets that differ by less than this share count as one.
SAME_BUDGET = 1.1
FEWEST_BUDGETS = 3
FEWEST_RUNS = 6
FEWEST_SIZES = 3
#: Condition of the scaled Jacobian from which the constants trade against each other within rounding of the losses.
ILL = 1e4
#: A term below this share of every loss counts as absent.
NOTHING = 1e-6
#: From this many times the largest budget on, an extrapolation is marked.
FAR = 100.0

CONVERGED = "converged"
NOT_CONVERGED = "not converged"
ON_BOUND = "on bound"
NO_FLOOR = "floor not told from 0"
GRID_EDGE = "grid edge"
FEW_SIZES = "too few sizes"
ILL_CONDITIONED = "ill-conditioned"

#: With these alone a law predicts: E = 0 is a legal minimum, and the bootstrap finds how far above 0 it may be.
USABLE = ((CONVERGED,), (NO_FLOOR,))
#: Explanation of each status.
MEANING = {
    CONVERGED: "the fit reached a minimum of the objective",
    NOT_CONVERGED: "the fit did not reach a minimum of the objective",
    ON_BOUND: "A or B is 0: the runs show no effect of parameters or of tokens",
    NO_FLOOR: "E is 0, its minimum: runs of these sizes show no loss floor; the law is valid only near these sizes",
    GRID_EDGE: f"an exponent is at the edge of {EXPONENTS[0]} to {EXPONENTS[1]}: the runs do not bound it",
    FEW_SIZES: f"fewer than {FEWEST_SIZES} sizes or numbers of tokens: E cannot be separated from the other terms",
    ILL_CONDITIONED: "the constants are not unique: other constants fit these runs equally well",
}


class ScalingRun(Frozen):
    """Run of a ladder, or one horizon of a run. Runs with the same `trunk` are horizons of the same training run."""

    params: float = Field(gt=0, allow_inf_nan=False)
    tokens: float = Field(gt=0, allow_inf_nan=False)
    loss: float = Field(gt=0, allow_inf_nan=False)
    probes: Mapping[str, float] = Field(default_factory=dict)
    trunk: str = ""

    @property
    def flops(self) -> float:
        """Training FLOPs, 6 N D."""
        return 6 * self.params * self.tokens


class ScalingFit(Frozen):
    """Scaling law fitted to runs. If the constants are not identifiable, `law` is None and `statuses` lists why."""

    law: ScalingLaw | None
    statuses: tuple[str, ...]
    objective: float
    delta: float
    runs: int
    trunks: int  # trainings: fewer than runs where one gave several horizons
    budgets: int
    largest_flops: float
    condition: float
    intervals: Mapping[str, Estimate]  # of the constants, and of `exponent`, a of N* ~ C^a
    seed: int
    draws: int
    unconverged_draws: int


@dataclass(frozen=True)
class Fitted:
    """Fitted scaling law with the data for predictions.

    `constants` are (E, A, B, alpha, beta), [5]; `drawn` are the constants of all bootstrap draws, [K, 5]; `residuals`
    are the residuals of ln L, [R].
    """

    fit: ScalingFit
    runs: tuple[ScalingRun, ...]
    constants: Floats
    drawn: Floats
    residuals: Floats

    @property
    def law(self) -> ScalingLaw:
        """Fitted scaling law.

        Raises:
            RequestError: the law's constants are not identifiable.
        """
        if self.fit.law is None:
            raise RequestError(
                "these runs do not determine a scaling law",
                found="; ".join(f"{status}: {MEANING[status]}" for status in self.fit.statuses),
                expected=CONVERGED,
                remedy="add runs with other sizes and other numbers of tokens",
            )
        return self.fit.law

    def losses(self, params: float, tokens: float) -> Floats:
        """Return the predicted loss for each bootstrap draw, [K].

        A least-squares fit pulls the surface toward the runs, so its residuals understate the noise. A bootstrap
        understates it for the same reason. The draws are spread by a factor that corrects this for runs with residuals
        within delta.
        """
        value = loss_of(self.constants, params, tokens)
        return value + (loss_of(self.drawn, params, tokens) - value) * self.spread

    @property
    def spread(self) -> float:
        """Factor on a draw's distance from the fit.

        It corrects for the number of fitted constants, and for the small number G of training runs (G / (G - 1)).
        """
        near = float((np.abs(self.residuals) <= self.fit.delta).mean())
        trunks = self.fit.trunks
        few = 1.0 if trunks == len(self.runs) else float(np.sqrt(trunks / (trunks - 1)))
        return (1 + near * (self.inflation - 1)) * few

    @property
    def floorless(self) -> Bools:
        """Mask of the bootstrap draws in which E is 0, [K]."""
        return np.asarray(self.drawn[:, 0] < NOTHING * min(run.loss for run in self.runs))

    @property
    def noise(self) -> Floats:
        """Residuals of ln L, [R], scaled to the size that they would have for runs outside the fit."""
        return self.residuals * self.inflation

    @property
    def inflation(self) -> float:
        """Factor by which residuals of the fit are smaller than those of other runs, for its five constants."""
        runs = len(self.residuals)
        return float(np.sqrt(runs / (runs - 5)))

    def extrapolation(self, flops: float) -> float:
        """Return the ratio of a budget in FLOPs to the largest budget of the fitted runs."""
        return flops / self.fit.largest_flops


def loss_of(constants: Floats, params: float, tokens: float) -> Floats:
    """Return the loss L(N, D) for constants [..., 5]."""
    e, a, b, alpha, beta = np.moveaxis(constants, -1, 0)
    return np.asarray(e + a * params**-alpha + b * tokens**-beta)


def weights_of(runs: Sequence[ScalingRun], draws: int, seed: int) -> Floats:
    """Return the bootstrap weights, [K, R]. Each row adds up to R.

    All horizons of a training run have the same weight.
    """
    trunks = _trunks(runs)
    weights = np.random.default_rng(seed).dirichlet(np.ones(max(trunks) + 1), draws)[:, trunks]
    return np.asarray(weights / weights.sum(axis=1, keepdims=True) * len(runs))


def _trunks(runs: Sequence[ScalingRun]) -> list[int]:
    """Return the index of the training run for each table row, [R]. A row without a trunk is its own training run."""
    seen: dict[str | int, int] = {}
    return [seen.setdefault(run.trunk or at, len(seen)) for at, run in enumerate(runs)]


def budgets(flops: Sequence[float]) -> int:
    """Return the number of different budgets. Budgets within a tenth of each other count as one."""
    count, last = 0, 0.0
    for value in sorted(flops):
        if value > SAME_BUDGET * last:
            count, last = count + 1, value
    return count


def fit(
    runs: Sequence[ScalingRun], *, delta: float = DELTA, draws: int = DRAWS, seed: int = 0, level: float = 0.95
) -> Fitted:
    """Fit the scaling law to runs, with bootstrap intervals.

    Args:
        runs: at least six runs with at least three budgets.
        delta: residual of ln L above which Huber's function is linear; the published value is 1e-3.
        draws: number of bootstrap draws; the publication uses 4,000.
        seed: random seed for the bootstrap.
        level: confidence level for the intervals of the constants.

    Raises:
        RequestError: there are too few runs or budgets.
    """
    found = budgets([run.flops for run in runs])
    if found < FEWEST_BUDGETS or len(runs) < FEWEST_RUNS:
        raise RequestError(
            "too few runs to fit a scaling law",
            found=f"{len(runs)} runs of {found} budgets",
            expected=f"at least {FEWEST_RUNS} runs with {FEWEST_BUDGETS} budgets (6 N D, at least 10% apart)",
            remedy="run more sizes, or keep more horizons per size",
        )
    surface, means = _surface(runs)
    whole = np.ones((1, len(runs)))
    starts = _starts(surface)
    deltas = (30 * delta, 10 * delta, 3 * delta, delta)
    theta, values, done = descend(surface, starts, np.repeat(whole, len(starts), 0), deltas)
    best = int(values.argmin())
    shares, residuals = surface.parts(theta[best : best + 1])
    weights = weights_of(runs, draws, seed)
    drawn, _, settled = descend(surface, np.repeat(theta[best : best + 1], draws, 0), weights, (10 * delta, delta))
    slopes = surface.slopes(shares)[0][:, _shown(shares[:, 0])]
    condition = float(np.linalg.cond(slopes / np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)))
    statuses = tuple(_statuses(runs, surface, theta[best], shares[:, 0], condition, bool(done[best])))
    constants, replicates = _constants(theta[best], means), _constants(drawn, means)
    if NO_FLOOR in statuses:
        constants[0] = 0.0
    record = ScalingFit(
        law=_law(constants) if statuses in USABLE else None, statuses=statuses,
        objective=float(values[best]), delta=delta, runs=len(runs), trunks=max(_trunks(runs)) + 1, budgets=found,
        largest_flops=max(run.flops for run in runs), condition=condition,
        intervals=_intervals(constants, replicates, len(runs), seed, level),
        seed=seed, draws=draws, unconverged_draws=int((~settled).sum()),
    )  # fmt: skip
    return Fitted(record, tuple(runs), constants, replicates, residuals[0])


def _surface(runs: Sequence[ScalingRun]) -> tuple[Surface, tuple[float, float]]:
    n, d, loss = (np.log([getattr(run, name) for run in runs]) for name in ("params", "tokens", "loss"))
    # a term that descends further is none, and a descent along nothing has no end
    low = np.array([loss.min() + math.log(NOTHING) - 1] * 3 + [EXPONENTS[0]] * 2)
    high = np.array([loss.max() + 5] * 3 + [EXPONENTS[1]] * 2)
    return Surface(n - n.mean(), d - d.mean(), loss, low, high), (float(n.mean()), float(d.mean()))


def _starts(surface: Surface) -> Floats:
    """Return the best starting points of the fit from a grid of exponents, [STARTS, 5].

    The search uses relative residuals of L instead of residuals of ln L, because they are linear in E, A and B.
    """
    from scipy.optimize import nnls

    found = []
    exponents = np.geomspace(EXPONENTS[0] * 2, EXPONENTS[1] * 0.8, GRID)
    ones = np.ones(len(surface.n))
    for alpha in exponents:
        for beta in exponents:
            terms = np.stack([np.exp(-alpha * surface.n), np.exp(-beta * surface.d), ones], axis=1)
            solved, rest = nnls(terms * np.exp(-surface.log_loss)[:, None], ones)
            found.append((rest, (*np.log(np.maximum(solved, 1e-6)), alpha, beta)))
    found.sort(key=lambda point: point[0])
    best = np.array([point for _, point in found[:STARTS]])
    return np.asarray(np.clip(best, surface.low, surface.high))


def _constants(theta: Floats, means: tuple[float, float]) -> Floats:
    """Convert fit parameters to (E, A, B, alpha, beta), [..., 5]. `theta` is relative to the means of ln N and ln D."""
    p, q, s, alpha, beta = np.moveaxis(theta, -1, 0)
    terms = [np.exp(s), np.exp(p + alpha * means[0]), np.exp(q + beta * means[1]), alpha, beta]
    return np.asarray(np.stack(terms, axis=-1))


def _law(constants: Floats) -> ScalingLaw:
    e, a, b, alpha, beta = constants.tolist()
    return ScalingLaw(E=e, A=a, B=b, alpha=alpha, beta=beta)


def _statuses(
    runs: Sequence[ScalingRun], surface: Surface, theta: Floats, shares: Floats, condition: float, done: bool
) -> Iterator[str]:
    """Yield a status for each problem of a fit, or `CONVERGED` if the fit has no problem."""
    sizes = min(len({run.params for run in runs}), len({run.tokens for run in runs}))
    near = 1e-6 * (surface.high - surface.low)[3:]
    edge = (theta[3:] <= surface.low[3:] + near) | (theta[3:] >= surface.high[3:] - near)
    found = {
        NOT_CONVERGED: not done,
        ON_BOUND: not _shown(shares)[:2].all(),
        NO_FLOOR: not _shown(shares)[2],
        GRID_EDGE: bool(edge.any()),
        FEW_SIZES: sizes < FEWEST_SIZES,
        ILL_CONDITIONED: condition > ILL,
    }
    wrong = [status for status, holds in found.items() if holds]
    yield from wrong or [CONVERGED]


def _shown(shares: Floats) -> Bools:
    """Return a mask, [5], of the fit parameters (p, q, s, alpha, beta) whose terms matter for the loss.

    A term matters if its share of the loss, [3, R], is large enough in some run. Exponents always matter.
    """
    terms = shares.max(axis=1) >= NOTHING
    return np.concatenate([terms, [True, True]])


def _intervals(constants: Floats, drawn: Floats, runs: int, seed: int, level: float) -> dict[str, Estimate]:
    names = ("E", "A", "B", "alpha", "beta")
    values = {name: (float(constants[i]), drawn[:, i]) for i, name in enumerate(names)}
    values["exponent"] = (float(constants[4] / constants[3:].sum()), drawn[:, 4] / drawn[:, 3:].sum(axis=1))
    return {
        name: from_replicates(value, own, n=runs, seed=seed, level=level).model_copy(
            update={"method": "percentile bootstrap, fractional weights"}
        )
        for name, (value, own) in values.items()
    }


COLUMNS = ("params", "tokens", "loss")
#: Names the training that a line is a horizon of; lines of one training are not independent.
TRUNK = "trunk"


@dataclass(frozen=True)
class RunTable:
    """Runs of a table that ended with a loss. `failed` has line number and loss, as written, of each other run."""

    runs: tuple[ScalingRun, ...]
    failed: tuple[tuple[int, str], ...]


def read_table(text: str) -> RunTable:
    """Parse a CSV table of runs.

    If a run's loss is empty or not finite, the run counts as failed. An empty probe was not scored.

    Raises:
        RequestError: a column is missing, or a value is not a number; the message names the line.
    """
    reader = csv.DictReader(io.StringIO(text))
    names = [name.strip() for name in reader.fieldnames or ()]
    lacking = [name for name in COLUMNS if name not in names]
    if lacking:
        found, expected = ", ".join(names), ", ".join(COLUMNS)
        raise RequestError(f"the table of runs has no column {lacking[0]!r}", found=found, expected=expected)
    runs, failed = [], []
    for row in reader:
        cells = {str(name).strip(): str(value or "").strip() for name, value in row.items()}
        line = reader.line_num
        loss = _number(cells["loss"] or "nan", "loss", line)
        if not math.isfinite(loss):
            failed.append((line, cells["loss"] or "no loss"))
            continue
        scored = [name for name in names if name not in (*COLUMNS, TRUNK) and cells[name]]
        probes = {name: _number(cells[name], name, line) for name in scored}
        sizes = {name: _number(cells[name], name, line) for name in ("params", "tokens")}
        wrong = [name for name, value in (*sizes.items(), ("loss", loss)) if not 0 < value < math.inf]
        wrong += [name for name, value in probes.items() if not math.isfinite(value)]
        if wrong:
            found = cells[wrong[0]]
            raise RequestError(f"line {line} of the table: bad {wrong[0]}", found=found, expected="a number above 0")
        runs.append(ScalingRun(**sizes, loss=loss, probes=probes, trunk=cells.get(TRUNK, "")))
    return RunTable(tuple(runs), tuple(failed))


def example() -> str:
    """Return an example table: the corrected Chinchilla law with 0.2% noise, five sizes, four horizons, one probe."""
    draw = np.random.default_rng(0)
    lines = ["params,tokens,loss,probe"]
    for params in (30e6, 60e6, 120e6, 250e6, 500e6):
        for multiple in (10, 20, 40, 80):
            loss = CORRECTED.loss(params, params * multiple) * math.exp(0.002 * draw.standard_normal())
            probe = 0.25 + 0.7 / (1 + math.exp(3 * (loss - 2.8))) + 0.005 * draw.standard_normal()
            lines.append(f"{params:.0f},{params * multiple:.0f},{loss:.4f},{probe:.4f}")
    return "\n".join(lines) + "\n"


def _number(text: str, name: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"line {line} of the table: {name} is not a number", found=text) from None
