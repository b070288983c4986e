"""Export formats for other trainers: `plinth export model --format dcp`, `olmo-core` or `megatron`; and the command
`plinth export checkpoint`, which writes an unreleased checkpoint in one of them.

Each is a folder of `torch.distributed.checkpoint` with the trainer's names and shapes (`plinth.model.interchange`),
and the configuration and tokenizer in Hugging Face's form. Weights keep their bits. A release is signed only after the
written folder has been read back and compared with the checkpoint, tensor by tensor. This module does not import torch.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.model.hugging_face import CONFIG, TOKENIZER, ModelForm
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.model.export import Exported

#: Files of a Hugging Face folder that the export also has.
TEXTS = (CONFIG, TOKENIZER, "tokenizer_config.json", "generation_config.json")


class TrainerForm:
    """Export of a model in the layout of another trainer.

    Args:
        form: name of the form, such as `megatron`.
        layout: name of the layout in `plinth.model.interchange.layouts`.
        source: verified folder of the model.
        tokenizer: path of the model's `tokenizer.json`.
        scratch: folder for temporary files.
    """

    def __init__(self, form: str, layout: str, source: Path, tokenizer: Path, scratch: Path) -> None:
        self.form, self._layout, self._source, self._tokenizer = form, layout, source, tokenizer
        self._plain, self._back = scratch / "plain", scratch / "restored"

    def write(self, folder: Path) -> Exported:
        """Write the files of the form to a folder."""
        from plinth.model.export import export_model
        from plinth.model.interchange.conversion import write_dcp

        plain = export_model(self._source, self._tokenizer, self._plain)
        write_dcp(self._plain, self._layout, folder)
        for name in TEXTS:
            shutil.copyfile(self._plain / name, folder / name)
        return plain._replace(files=sorted(path.name for path in folder.glob("*.distcp")))

    def judged(self, settings: Settings, ctx: Context, release: str, folder: Path) -> None:
        """Read the folder back, compare it with the checkpoint, and sign a statement about its files.

        Raises:
            IntegrityError: the folder has other weights than the checkpoint.
            SignatureError: this machine has no evaluator key.
        """
        from plinth_registry import exports

        restore(folder, self._back)
        for name in TEXTS:
            shutil.copyfile(folder / name, self._back / name)
        exports.state_plain(ctx, exports.form_source(ctx, self._source), self.form, folder, self._back)


def restore(folder: Path, target: Path) -> None:
    """Write the weights of an exported folder as safetensors files to a new folder."""
    from plinth.model.folder import read_config
    from plinth.model.hugging_face import model_of
    from plinth.model.interchange.conversion import DcpWeights, hf_files
    from plinth.model.interchange.dcp import DcpFolder
    from plinth.storage import tensor_file

    config = read_config(folder)
    with DcpFolder(folder) as dcp:
        for name, content in hf_files(DcpWeights(dcp, model_of(config), int(config["vocab_size"]))):
            tensor_file.write_chunks(target / name, content)


@contextmanager
def _exported(layout: str, ctx: Context, form: str, source: Path, tokenizer: Path) -> Iterator[TrainerForm]:
    """Yield the export of a model in a trainer's layout, with a temporary folder for its files."""
    ctx.workspace.tmp.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="form-", dir=ctx.workspace.tmp) as scratch:
        yield TrainerForm(form, layout, source, tokenizer, Path(scratch))


def _form(name: str, layout: str) -> ModelForm:
    return ModelForm(name=name, export=partial(_exported, layout))


DCP, OLMO_CORE, MEGATRON = _form("dcp", "hf"), _form("olmo-core", "olmo-core"), _form("megatron", "megatron")


@click.command(
    short_help="Export a checkpoint of a run for another trainer.",
    epilog=examples(
        "plinth export checkpoint latest /data/dcp",
        "plinth export checkpoint demo-3fa9:5000 /data/megatron --format megatron",
    ),
)
@click.argument("target", metavar="RUN[:STEP]")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["dcp", "olmo-core", "megatron"]),
    default="dcp",
    show_default=True,
    help="Names of the tensors: `dcp` has those of Hugging Face.",
)
@shared
@json_option
@click.pass_context
def checkpoint(
    click_context: click.Context, settings: Settings, target: str, folder: Path, form: str, as_json: bool
) -> None:
    """Write a committed checkpoint to FOLDER for `torch.distributed.checkpoint` (DCP).

    RUN is `latest`, a run ID or a prefix of it; the default STEP is the newest. The export has weights, `config.json`
    and `tokenizer.json`, is signed, and is marked as unreleased; use `plinth export model NAME/VERSION FOLDER --format
    dcp` for a release. `training.initial.dcp` reads it back.
    """
    from plinth_jobs.cli.export import model

    run, colon, step = target.partition(":")
    if colon and not step.isdecimal():
        raise click.BadParameter(f"{step!r} is not a step", param_hint="RUN[:STEP]")
    number = int(step) if colon else None
    click_context.invoke(
        model, target=run, folder=folder, unreleased=True, checkpoint=number, form=form, as_json=as_json
    )
