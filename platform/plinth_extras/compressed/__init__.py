"""Compressed forms of a trained model, written from a folder in Hugging Face's layout and read back for evaluation.

    forms            forms by name, with conversion in both directions; `torchao` integers; magnitude pruning
    gguf_file        GGUF for llama.cpp: tensors quantized by `gguf`, keys, the tokenizer in GGUF

A model that is read back has the quantized or pruned weights of its file. The loss of quality is measured
by the evaluation (`plinth_registry.exports`).

Also here: the entries of the entry-point group `plinth.model_forms`. `plinth export model --format` writes a form,
reads it back, measures its quality and evaluates the export gates. This module does not import torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from plinth.extensions import late
from plinth.model.hugging_face import ModelForm
from plinth_jobs.cli.options import Settings

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.model.export import Exported
    from plinth.records import Manifest
    from plinth_registry.exports import FormClaim


class FormExport:
    """Export of a model in one compressed form.

    Args:
        form: name of the form, such as `gguf-q8_0`.
        source: verified folder of the model.
        tokenizer: path of the model's `tokenizer.json`.
        scratch: folder for temporary files.
    """

    def __init__(self, form: str, source: Path, tokenizer: Path, scratch: Path) -> None:
        self.form, self._source, self._tokenizer = form, source, tokenizer
        self._plain, self._back = scratch / "plain", scratch / "restored"

    def write(self, folder: Path) -> Exported:
        """Write the files of the form to a folder."""
        from plinth.model.export import export_model
        from plinth_extras.compressed import forms

        plain = export_model(self._source, self._tokenizer, self._plain, forms.source_dtype(self.form))
        made = forms.write(self.form, self._plain, folder)
        return plain._replace(files=made.files, bytes=made.bytes, dtype=self.form)

    def judged(self, settings: Settings, ctx: Context, release: str, folder: Path) -> FormClaim:
        """Compare the compressed model with its release on held-out text, and evaluate the export gates.

        Raises:
            GateError: a gate blocks the export.
            MissingError: the workspace has no held-out text for the comparison.
        """
        from plinth_extras.compressed import forms
        from plinth_registry import exports as judging

        forms.restore(self.form, self._plain, folder, self._back)
        source = judging.form_source(ctx, self._source)
        compared = _compared(settings, ctx, self.form, ctx.refs.load(source.checkpoint), self._back)
        return judging.judge_form(ctx, source, release, self.form, compared, folder)


@contextmanager
def form_export(ctx: Context, form: str, source: Path, tokenizer: Path) -> Iterator[FormExport]:
    """Yield the export of a release in a compressed form, with a temporary folder for its files."""
    ctx.workspace.tmp.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="form-", dir=ctx.workspace.tmp) as scratch:
        yield FormExport(form, source, tokenizer, Path(scratch))


def _compared(settings: Settings, ctx: Context, form: str, checkpoint: Manifest, restored: Path) -> Manifest:
    """Return the comparison of the compressed model (a) with the release (b) on held-out text."""
    from plinth.errors import MissingError
    from plinth.evaluation.comparison import job
    from plinth.evaluation.comparison.models import weights
    from plinth_assets.measurements import evaluation_stage

    (stage,) = evaluation_stage.stages(settings.load_recipe())
    published = {name: ctx.refs.published(name) for name in stage.deps if name != "checkpoint"}
    lacking = sorted(name for name, made in published.items() if made is None)
    if lacking:
        raise MissingError(
            f"no data to evaluate {form}",
            found=f"no {', '.join(lacking)} in this workspace",
            remedy="run `plinth run --select evaluation`, which measures the release on held-out text",
        )
    given = {name: made for name, made in published.items() if made}
    of_release = {"params": {"form": form}, "inputs": {"release": checkpoint.digest}}
    made = weights(ctx, restored).model_copy(update=of_release)
    sides = []
    for one in (made, checkpoint):
        ctx.refs.save(one)
        measured = stage.make(ctx, {**given, "checkpoint": one}, _quietly)
        ctx.refs.save(measured)
        sides.append(job.MeasuredModel(one, {stage.asset: measured}))
    compared = job.run(ctx, *sides)
    ctx.refs.save(compared)
    return compared


def _quietly(line: str) -> None:
    """Ignore a progress message of the evaluation stage."""


def _form(name: str) -> ModelForm:
    return ModelForm(name=name, export=late("plinth_extras.compressed:form_export"))


GGUF_Q8_0, GGUF_Q4_0 = _form("gguf-q8_0"), _form("gguf-q4_0")
INT8, INT4 = _form("int8"), _form("int4")
PRUNED_50, PRUNED_2_4 = _form("pruned-50"), _form("pruned-2:4")
