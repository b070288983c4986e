"""`plinth export model`: a checkpoint in Hugging Face's layout."""

from __future__ import annotations

from pathlib import Path

import click

from jobs.cli.options import Settings, examples, json_option, shared


@click.command(
    epilog=examples(
        "plinth export model latest llama",
        "plinth export model latest llama --checkpoint 5000 --dtype bfloat16 --file-gb 2",
    )
)
@click.argument("run")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--checkpoint", type=click.IntRange(min=1), help="Step of a committed checkpoint (default: the newest).")
@click.option(
    "--dtype",
    type=click.Choice(["saved", "float32", "bfloat16", "float16"]),
    default="saved",
    show_default=True,
    help="Precision of the weights; `saved` keeps that of the checkpoint.",
)
@click.option(
    "--file-gb",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Largest size of a file of weights, in gigabytes.",
)
@shared
@json_option
def model(
    settings: Settings, run: str, folder: Path, checkpoint: int | None, dtype: str, file_gb: float, as_json: bool
) -> None:
    """Write a checkpoint of RUN (`latest`, its id or a prefix of it) to FOLDER: weights, configuration, tokenizer.

    `AutoModelForCausalLM` and `AutoTokenizer` load it as the architecture of the run's model: Llama, Qwen3 or OLMo 2.
    Every byte of the checkpoint is compared with its record first; muP's multipliers are folded into the weights.
    FOLDER appears complete or not at all.
    """
    from jobs.cli import output
    from jobs.cli.training.batch import find_run
    from plinth.errors import MissingError
    from plinth.model.export import export_model
    from plinth.training.checkpoint import checkpoint as files

    ctx = settings.context()
    config = find_run(ctx, run)
    steps = files.committed(config.directory)
    step = checkpoint or (steps[-1] if steps else 0)
    if step not in steps:
        raise MissingError(
            f"run {config.run_id} has no checkpoint {step or ''}".rstrip(),
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            remedy="`plinth checkpoint list RUN` shows them",
        )
    (part,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    weights = files.verify(config.directory, step) / "model"
    made = export_model(weights, ctx.store.open_path(part.blob), folder, dtype, int(file_gb * 1e9))
    if as_json:
        output.emit_json({"run": config.run_id, "step": step, "folder": str(folder), **made._asdict()})
        return
    output.say(
        f"{folder}: {made.parameters:,} parameters of step {step}, {made.dtype}, {output.size(made.bytes)}, "
        f"in {len(made.files)} file{'' if len(made.files) == 1 else 's'} with tokenizer and configuration beside"
    )
