"""Scaling ladders: a law fitted to small runs predicts a larger run, with intervals.

    law       L(N, D) = E + A / N^alpha + B / D^beta: optimum for a budget, with the cost of inference and repeated text
    fit       the law from a table of runs: variable projection, then the published objective; statuses, intervals
    predict   loss and probes of a larger run, stored and compared with the measured values; intervals of an optimum;
              the best model that money buys on a fleet
    curve     loss curve of a run with a simultaneous band, from the curves of a ladder's runs, for its launch contract
    ladder    a ladder as an experiment: forecast of the held-out size from the other sizes

This package also defines the command `plinth experiment scaling`, which imports the other modules when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.evaluation.statistics import Estimate
    from plinth_lab.scaling.fit import Fitted

_TABLE = click.argument("table", type=click.Path(path_type=Path, exists=True, dir_okay=False))
_AMOUNT = click.FloatRange(min=0, min_open=True)
_DRAWS = click.option("--draws", type=click.IntRange(min=100), default=4000, help="Bootstrap draws (default: 4000).")


@group(
    short_help="Fit a scaling law to small runs; predict a larger run.",
    epilog=examples(
        "plinth experiment scaling example > runs.csv", "plinth experiment scaling fit runs.csv --budget 1e21"
    ),
)
def scaling() -> None:
    """Fit a scaling law to a ladder of small runs, find the optimum for a budget, and predict a larger run."""


@scaling.command(epilog=examples("plinth experiment scaling example > runs.csv"))
def example() -> None:
    """Print a synthetic table of runs with parameters, tokens, loss and one probe."""
    from plinth_jobs.cli import output
    from plinth_lab.scaling.fit import example as made

    output.line(made(), end="")


@scaling.command(
    "fit",
    epilog=examples(
        "plinth experiment scaling fit runs.csv --budget 1e21",
        "plinth experiment scaling fit runs.csv --budget 1e21 --inference-tokens 1e12 --unique-tokens 3e9",
    ),
)
@_TABLE
@click.option("--budget", type=_AMOUNT, help="Budget in FLOPs, including inference.")
@click.option("--inference-tokens", type=click.FloatRange(min=0), default=0.0, help="Tokens for inference.")
@click.option("--unique-tokens", type=_AMOUNT, help="Number of unique training tokens.")
@_DRAWS
@shared
@json_option
def fit_command(
    settings: Settings,
    table: Path,
    budget: float | None,
    inference_tokens: float,
    unique_tokens: float | None,
    draws: int,
    as_json: bool,
) -> None:
    """Fit E + A / N^alpha + B / D^beta to the runs in TABLE (CSV: params, tokens, loss, and probes).

    The constants have 95% intervals. If the constants are not identifiable, the status is printed instead, and the exit
    code is 2.
    """
    from plinth_jobs.cli import output
    from plinth_lab.scaling.fit import FAR
    from plinth_lab.scaling.law import DataReuse
    from plinth_lab.scaling.predict import optimum

    fitted = fitted_to(table, draws)
    law = fitted.law
    reuse = DataReuse(unique_tokens=unique_tokens) if unique_tokens else None
    best = law.optimum(budget, inference_tokens=inference_tokens, reuse=reuse) if budget else None
    sure = optimum(fitted, budget, inference_tokens=inference_tokens, reuse=reuse) if budget else None
    times = fitted.extrapolation(budget) if budget else 0.0
    if as_json:
        output.emit_json({"fit": fitted.fit, "optimum": best, "intervals": sure, "extrapolation": times or None})
        return
    found = fitted.fit
    output.heading(f"{counted(found.runs, 'run')} of {counted(found.budgets, 'budget')}: {', '.join(found.statuses)}")
    output.facts({name: interval(own) for name, own in found.intervals.items()})
    output.facts({"objective": f"{found.objective:.6g}", "condition": f"{found.condition:.3g}"})
    if best is not None and sure is not None:
        far = " (far outside the range of the runs)" if times > FAR else ""
        output.heading(f"Optimum for {budget:.3g} FLOPs, {times:.3g} x the largest budget{far}")
        epochs = {} if best.epochs is None else {"epochs": f"{best.epochs:.3g}"}
        output.facts(
            {
                "parameters": interval(sure.params),
                "tokens": f"{interval(sure.tokens)}; {best.tokens_per_parameter:.3g} per parameter",
                **epochs,
                "loss": f"{best.loss:.4f}",
                "FLOPs": f"{best.training_flops:.3g} training, {best.inference_flops:.3g} inference",
            }
        )


@scaling.command(
    "predict",
    epilog=examples(
        "plinth experiment scaling predict runs.csv --params 5e9 --tokens 1e11 --out foretold.json",
        "plinth experiment scaling compare foretold.json --loss 2.31",
    ),
)
@_TABLE
@click.option("--params", type=_AMOUNT, required=True, help="Number of parameters of the larger run.")
@click.option("--tokens", type=_AMOUNT, required=True, help="Training tokens of the larger run.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Output file for the prediction.")
@_DRAWS
@shared
@json_option
def predict_command(
    settings: Settings, table: Path, params: float, tokens: float, out: Path | None, draws: int, as_json: bool
) -> None:
    """Predict loss and probes of a larger run, with 80% prediction intervals."""
    from plinth import fingerprint
    from plinth.storage.uris import write_file
    from plinth_jobs.cli import output
    from plinth_lab.scaling.predict import predict as make

    made = make(fitted_to(table, draws), params, tokens)
    if out is not None:
        write_file(str(out), lambda file: file.write(fingerprint.canonical(made)))
    if as_json:
        output.emit_json({"digest": made.digest, **made.model_dump(mode="json")})
        return
    far = " (far outside the range of the runs)" if made.far else ""
    output.heading(f"{params:.3g} parameters, {tokens:.3g} tokens: {made.extrapolation:.3g} x the largest budget{far}")
    probes = {f"probe {name}": interval(own) for name, own in made.probes.items()}
    output.facts({"loss": interval(made.loss), **probes, **{f"probe {k}": why for k, why in made.unpredicted.items()}})
    output.facts({"prediction": made.digest})


@scaling.command("curve", epilog=examples("plinth experiment scaling curve ladder.yaml big-3569 --out curve.json"))
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Output file, for `plinth run contract`.")
@shared
@json_option
def curve_command(settings: Settings, file: Path, run: str, out: Path | None, as_json: bool) -> None:
    """Predict the loss curve of RUN, which is prepared but not started, from the runs of the ladder in FILE.

    The band contains the losses of all segments of the run together with a probability of 95%. All runs of the ladder
    that count have the learning rate schedule of RUN, in fractions of their tokens. They need the mixture weights of
    RUN, and its tokenizer or one that cuts text nearly alike, since losses are per token.
    """
    from plinth import fingerprint
    from plinth.model.architectures import parameters
    from plinth.storage.uris import write_file
    from plinth.training.predicted_curve import shape_of
    from plinth_jobs.cli import output
    from plinth_lab.experiments import run as experiments
    from plinth_lab.scaling.curve import ladder_curves, predicted

    ctx, config = settings.context(), settings.run_config(run)
    _, arms = experiments.load(file)
    made = {one.asset: ctx.refs.current(one.asset) for one in arms if ctx.refs.seen(one.asset)}
    size, tokens = parameters(config.model, config.vocab_size).active, config.tokens_through(config.total_steps)
    curves = ladder_curves(ctx, arms, made)
    found = predicted(curves, size, tokens, shape_of(config.optimizer))
    if curves.tokenizers - {config.tokenizer}:
        output.line(
            f"warning: the ladder has another tokenizer than {config.run_id}, so the predicted losses per token may be "
            "off; `tokenizer: {kind: given}` gives all the same",
            err=True,
        )
    if out is not None:
        write_file(str(out), lambda stream: stream.write(fingerprint.canonical(found)))
    if as_json:
        output.emit_json(found)
        return
    times = f"{found.extrapolation:.3g} x the largest budget of {counted(len(found.runs), 'run')}"
    output.heading(f"{config.run_id}: {size:,} parameters, {tokens:,} tokens, {times}")
    rows = [(f"{one.tokens:,}", f"{one.value:.4f}", f"{one.low:.4f} to {one.high:.4f}") for one in found.points]
    output.table(("tokens", "loss", f"{found.level:.0%} band"), rows, right=("tokens", "loss"))


@scaling.command(epilog=examples("plinth experiment scaling compare foretold.json --loss 2.31 --probe probe=0.81"))
@click.argument("prediction", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--loss", type=float, required=True, help="Measured loss of the run.")
@click.option("--probe", "probes", multiple=True, metavar="NAME=SCORE", help="Measured probe score. Repeatable.")
@shared
@json_option
def compare(settings: Settings, prediction: Path, loss: float, probes: tuple[str, ...], as_json: bool) -> None:
    """Compare a stored prediction with the measured results of a finished run.

    The table has the error in percent, and whether the interval contains the measured value.
    """
    from pydantic import ValidationError

    from plinth.errors import RequestError
    from plinth_jobs.cli import output
    from plinth_lab.scaling.predict import ScalingPrediction

    try:
        made = ScalingPrediction.model_validate_json(prediction.read_bytes())
        scores = {name: float(score) for name, _, score in (one.partition("=") for one in probes)}
    except (ValidationError, ValueError) as error:
        raise RequestError(
            f"the file {prediction} or a --probe cannot be read", found=str(error).splitlines()[0],
            expected="a file of `plinth experiment scaling predict --out`, and NAME=SCORE",
        ) from error  # fmt: skip
    found = made.compare(loss, scores)
    if as_json:
        output.emit_json({"digest": made.digest, "outcomes": found})
        return
    rows = [(o.measure, interval(o.predicted), f"{o.truth:.4g}", f"{o.error:+.2%}", o.inside) for o in found]
    output.table(("measure", "foretold", "truth", "error", "inside"), rows, right=("truth", "error"))


def interval(found: Estimate) -> str:
    """Format an estimate with its interval."""
    return f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g})"


def fitted_to(table: Path, draws: int) -> Fitted:
    """Fit the scaling law to the runs in a table. Print the lines that are skipped because the run has no loss.

    Raises:
        RequestError: the table is invalid, or has too few runs.
    """
    from plinth_jobs.cli import output
    from plinth_lab.scaling.fit import fit as make
    from plinth_lab.scaling.fit import read_table

    read = read_table(table.read_text(encoding="utf-8"))
    for line, loss in read.failed:
        output.line(f"{table}:{line}: skipped, the run has no loss: {loss}", err=True)
    return make(read.runs, draws=draws)
