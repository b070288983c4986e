"""`plinth run timeline`: the page of one run."""

from __future__ import annotations

from pathlib import Path

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared


@click.command(
    epilog=examples("plinth run timeline latest", "plinth run timeline latest --peak-tflops 989 --price 2.5")
)
@click.argument("run")
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option(
    "--peak-tflops", type=click.FloatRange(min=0, min_open=True), help="Peak of a device, for the utilisation."
)
@click.option(
    "--price", type=click.FloatRange(min=0), help="Price per rank and hour; the workspace's or the recipe's by default."
)
@shared
@json_option
def timeline(
    settings: Settings, run: str, target: Path | None, peak_tflops: float | None, price: float | None, as_json: bool
) -> None:
    """Write the page of RUN (`latest`, a run id or a prefix of it): loss, slices, gradient norm, speed, waits, memory,
    checkpoint age, interventions, restarts and mixture over one axis, and the use of time and money.

    The run may still be under way. The page is self-contained.
    """
    from plinth.operation.spending import parameters
    from plinth.report.run import run_page
    from plinth_jobs.cli import output
    from plinth_jobs.runs import find_run

    ctx = settings.context()
    config = find_run(ctx, run)
    if price is None:
        price = parameters.load(ctx.workspace).price(config.stopping.price_per_rank_hour) or None
    peak = peak_tflops * 1e12 if peak_tflops else None
    written = run_page.write(ctx, config, peak_flops=peak, price_per_rank_hour=price, target=target)
    if as_json:
        output.emit_json({"run": config.run_id, "page": str(written)})
    else:
        output.say(written)
