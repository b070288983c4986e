"""`plinth timeline`: the page of one run, at any moment."""

from __future__ import annotations

from pathlib import Path

import click

from jobs.cli.options import Settings, examples, json_option, shared


@click.command(epilog=examples("plinth timeline latest", "plinth timeline latest --peak-tflops 989 --price 2.5"))
@click.argument("run")
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False, path_type=Path), help="Where to write it.")
@click.option("--peak-tflops", type=click.FloatRange(min=0, min_open=True), help="Of a device, for the utilisation.")
@click.option("--price", type=click.FloatRange(min=0), help="Of a rank and hour; the recipe's by default.")
@shared
@json_option
def timeline(
    settings: Settings, run: str, target: Path | None, peak_tflops: float | None, price: float | None, as_json: bool
) -> None:
    """Draw RUN (`latest`, a run id or its beginning) on one page: loss, slices, gradient norm, speed, waits, memory,
    checkpoint age, interventions, restarts and mixture over one axis, and where the time and the money went.

    Works while the run is going on. The page needs nothing but itself.
    """
    from jobs.cli import output
    from jobs.cli.training.batch import find_run
    from plinth.report.run import build

    ctx = settings.context()
    config = find_run(ctx, run)
    peak = peak_tflops * 1e12 if peak_tflops else None
    written = build.write(ctx, config, peak_flops=peak, price_per_rank_hour=price, target=target)
    if as_json:
        output.emit_json({"run": config.run_id, "page": str(written)})
    else:
        output.say(written)
