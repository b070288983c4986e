"""A model that was trained before, given as files, which a list of the recipe names: what `plinth export restore`
wrote, or a ready model of others (`fasttext`, `transformer`).

A model trained on a bucket changes when the bucket grows, and then every document is scored again. A given model stays:
only a new snapshot is scored, two workspaces score alike, and sidecars of the same bytes are reused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from plinth.compute.context import Context, manifest
from plinth.corpus.models import ready_fasttext, ready_transformer
from plinth.corpus.models.classify import artefact
from plinth.corpus.models.ngram import ngram_file
from plinth.corpus.models.trainers import ModelTrainer
from plinth.errors import IntegrityError
from plinth.records import Frozen, Manifest, Part, Step

KIND, VERSION = "given", "1"
#: Kinds that others made: known by nothing but their digest.
READY = ("fasttext", "transformer")


class GivenModelParams(Frozen):
    """Where the files are."""

    files: str = Field(
        description="Name of an entry of `corpus.lists`: the folder that `plinth export restore` wrote, a fastText "
        "model, or a Hugging Face folder."
    )
    of: Literal["classifier", "tagger", "ngram", "fasttext", "transformer"] = Field(
        description="Kind of model that they are; of others' are `fasttext` (`.bin`, `.ftz`) and `transformer` (a head "
        "for sequence classification)."
    )
    sha256: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        exclude_if=lambda given: not given,
        description="SHA-256 of the file, or of what `LC_ALL=C sha256sum *` prints in the folder; other files are "
        "refused. A model whose score drops documents needs it, and every model of others.",
    )

    @model_validator(mode="after")
    def _known_by_digest(self) -> GivenModelParams:
        if self.of in READY and not self.sha256:
            raise ValueError(
                f"a ready {self.of} model needs `sha256`: its author's, or what `sha256sum` prints of the file that "
                "you trust (docs/learned-gates.md)"
            )
        return self


def train(
    ctx: Context, asset: str, params: GivenModelParams, documents: Mapping[str, Manifest], lists: Mapping[str, Manifest]
) -> Manifest:
    """The files as they are, opened once to see that they are such a model.

    Returns:
        Manifest of the files under their names. Statistics: `kind`, and the header of the model.

    Raises:
        IntegrityError: they have another digest, another version or kind wrote them, one is missing, or they do not
            fit together.
    """
    parts = opened(lists[params.files].parts)
    if params.sha256 not in ("", digest(parts)):
        raise IntegrityError(
            f"{asset}: the files in lists/{params.files} are not those that the recipe names",
            found=f"sha256 {digest(parts)}",
            expected=params.sha256,
            remedy="bring the right files, or name the digest of these once you trust them",
        )
    files = {part.name: ctx.store.open_path(part.blob) for part in parts}
    stats = {"kind": params.of, **_READERS[params.of](files, asset)}
    step = Step(name=f"models/{KIND}", version=VERSION, params=params.model_dump(mode="json"))
    return manifest(asset, step, {f"lists/{params.files}": lists[params.files]}, parts, stats)


def opened(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The files that a model is read from: those that `*` names in a folder. A clone has others beside and below."""
    visible = (part for part in parts if "/" not in part.name and not part.name.startswith("."))
    return tuple(parts) if len(parts) == 1 else tuple(visible)


def digest(parts: Sequence[Part]) -> str:
    """SHA-256 of the only file, or of what `sha256sum` prints of all files in the order of their names."""
    parts = opened(parts)
    if len(parts) == 1:
        return parts[0].blob.sha256
    lines = (f"{part.blob.sha256}  {part.name}\n" for part in sorted(parts, key=lambda part: part.name.encode()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _ngram(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
    model = ngram_file.read(files, asset)
    return {"order": len(model.keys), "words": len(model.words)}


def _linear(kind: str) -> Callable[[Mapping[str, Path], str], dict[str, Any]]:
    def read(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
        head = artefact.read(files, asset, kind).head
        return {"labels": ", ".join(head.labels), "bits": head.bits, "second_stage": head.second is not None}

    return read


_READERS = {
    "ngram": _ngram,
    "classifier": _linear("classifier"),
    "tagger": _linear("tagger"),
    "fasttext": ready_fasttext.described,
    "transformer": ready_transformer.described,
}

TRAINER = ModelTrainer(
    kind=KIND,
    version=VERSION,
    description="A model that was trained before, given as its files.",
    source="Whoever trained it; the files say how.",
    params=GivenModelParams,
    buckets=lambda params: (),
    lists=lambda params: (params.files,),
    train=train,
    libraries=(),
)
