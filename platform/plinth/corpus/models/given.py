"""Pretrained models that the user supplies as files: fastText models, transformer heads, and models exported from a
workspace.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from plinth.compute.context import Context, manifest
from plinth.compute.engine import torch_threads
from plinth.corpus.models import ModelTrainer, artefact, ngram
from plinth.errors import IntegrityError, MissingError
from plinth.records import Frozen, Manifest, Part, Step
from plinth_text.arrays import F32, I32, I64
from plinth_text.fasttext import model_file
from plinth_text.fasttext.model_file import FastTextModel


def read_fasttext(files: Mapping[str, Path], asset: str) -> FastTextModel:
    """Memory-map the fastText model in the files of a list.

    Raises:
        IntegrityError: there is more than one file.
        ModelFileError: the file is not a supervised fastText model.
    """
    if len(files) != 1:
        raise IntegrityError(
            f"{asset} cannot be used",
            found=", ".join(sorted(files)) or "no file",
            expected="one file that is a fastText model",
            remedy="set the file itself in `corpus.lists`, not its folder",
        )
    return model_file.read(next(iter(files.values())))


def fasttext_described(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
    """Return properties of the fastText model for the catalog.

    Raises:
        IntegrityError: there is more than one file.
        ModelFileError: the file is not a supervised fastText model.
    """
    model = read_fasttext(files, asset)
    labels = ", ".join(model.labels[:20]) + (", …" if len(model.labels) > 20 else "")
    return {"labels": labels, "words": model.nwords, "dim": model.dim, "word_ngrams": model.word_ngrams}


# A ready classification head: a Hugging Face folder of `AutoModelForSequenceClassification`, scored in batches.
#
# Weights are safetensors; nothing is unpickled, no code of the folder runs, nothing is downloaded. `torch` and
# `transformers` are imported when a worker loads the model, and by nothing that only describes it.
#
# Letters: D documents, L labels.

#: Endings of files that are opened; others are as if they were not there.
OPENED = (".json", ".safetensors", ".txt", ".model")
#: Tokens of a batch with its padding: 16 texts of 512. It is the same on every device, so that batches are, too.
BATCH_TOKENS = 8192
#: Characters that are looked at for each token; a text that has too few tokens in them is read whole.
TOKEN_CHARACTERS = 32
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True)
class HeadScores:
    """Scores that a classification head gives to texts.

    Args:
        scores: probabilities of the labels, or the outputs of a regression, [D, L].
        tokens: number of tokens read, including those that the tokenizer adds, [D].
    """

    scores: F32
    tokens: I32


def transformer_described(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
    """Return properties of the classification head for the catalog, read from its files without loading the model.

    Raises:
        IntegrityError: the folder is not a classification head, contains code, or has no safetensors.
    """
    config = _config(files, asset)
    names = _labels(config)
    return {"architecture": config["architectures"][0], "labels": ", ".join(names), "regression": _regression(config)}


class TransformerHead:
    """Transformer model with a classification head, loaded into memory, on a GPU if there is one.

    Args:
        files: files of the folder, by name.
        asset: name of the asset, for error messages.
        max_tokens: maximum number of tokens to read per text, limited by the model's maximum sequence length.

    Raises:
        IntegrityError: the files are not a classification head.
        MissingError: `transformers` is not installed.
    """

    def __init__(self, files: Mapping[str, Path], asset: str, max_tokens: int) -> None:
        config = _config(files, asset)
        self.labels, self.regression = _labels(config), _regression(config)
        self._each = config.get("problem_type") == "multi_label_classification"
        self.max_tokens = min(max_tokens, int(config.get("max_position_embeddings") or max_tokens))
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a process for each core is at work already
        try:
            import torch
            from safetensors import SafetensorError
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
        except ImportError as error:
            raise MissingError(
                "the annotator `transformer` needs transformers and torch",
                found=error,
                remedy="python -m pip install 'plinth[transformers]'",
            ) from error
        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        own = {"local_files_only": True, "trust_remote_code": False}
        try:
            with _folder(files) as folder, torch_threads():
                self._tokenizer = AutoTokenizer.from_pretrained(folder, **own)
                model = AutoModelForSequenceClassification.from_pretrained(
                    folder, use_safetensors=True, dtype=torch.float32, **own
                )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise _unusable(asset, f"{type(error).__name__}: {error}", "a folder that transformers loads") from error
        self._model = model.eval().to(self._device)

    def score(self, texts: Sequence[str]) -> HeadScores:
        """Return the scores of texts. A batch contains texts of similar length, so that there is little padding."""
        ids = self._ids(texts)
        lengths = np.array([len(one) for one in ids], np.int32)
        scores = np.zeros((len(texts), len(self.labels)), np.float32)
        with self._torch.inference_mode(), torch_threads():
            for rows in _batches(lengths):
                batch = self._tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
                logits = self._model(**batch.to(self._device)).logits
                scores[rows] = self._shares(logits.float()).cpu().numpy()
        return HeadScores(scores, lengths)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        most = TOKEN_CHARACTERS * self.max_tokens
        found: list[list[int]] = self._encoded([_beginning(text, most) for text in texts])
        short = [row for row, text in enumerate(texts) if len(text) > most and len(found[row]) < self.max_tokens]
        for row, whole in zip(short, self._encoded([texts[row] for row in short]), strict=True):
            found[row] = whole
        return found

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        made = self._tokenizer(texts, truncation=True, max_length=self.max_tokens, return_attention_mask=False)
        return list(made["input_ids"])

    def _shares(self, logits: Any) -> Any:
        if self.regression:
            return logits
        return logits.sigmoid() if self._each else logits.softmax(dim=-1)


def _beginning(text: str, most: int) -> str:
    """Return at most the first `most` characters of a text, cut at a space so that no token before the cut changes."""
    return text if len(text) <= most else text[: max(text.rfind(" ", 0, most), 1)]


def _batches(lengths: I32) -> Iterator[I64]:
    """Yield batches of row indices, beginning with the longest texts. A batch has at most `BATCH_TOKENS` tokens,
    including padding."""
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < order.size:
        size = max(1, BATCH_TOKENS // max(1, int(lengths[order[at]])))
        yield order[at : at + size]
        at += size


@contextmanager
def _folder(files: Mapping[str, Path]) -> Iterator[str]:
    """Yield a temporary folder with links to the model's files that may be opened, under the names of the files."""
    with TemporaryDirectory(prefix="plinth-head-") as folder:
        for name, path in files.items():
            if name.endswith(OPENED):
                (Path(folder) / name).symlink_to(path.resolve())
        yield folder


def _config(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
    config, tokenizer = (_json(files, name, asset) for name in ("config.json", "tokenizer_config.json"))
    if "auto_map" in config or "auto_map" in tokenizer:
        found = "`auto_map` in a configuration"
        raise _unusable(asset, found, "an architecture built into transformers, because code in the folder is not run")
    architectures = config.get("architectures")
    head = architectures[0] if isinstance(architectures, list) and architectures else None
    if not str(head).endswith("ForSequenceClassification"):
        raise _unusable(asset, f"architecture {head}", "a head for sequence classification")
    if not any(name.endswith(".safetensors") for name in files):
        raise _unusable(asset, ", ".join(sorted(files)), "weights as safetensors; other formats can contain code")
    return config


def _json(files: Mapping[str, Path], name: str, asset: str) -> dict[str, Any]:
    try:
        found = json.loads(files[name].read_bytes())
    except (KeyError, ValueError, OSError) as error:
        raise _unusable(asset, f"{type(error).__name__}: {error}", f"{name}, JSON") from error
    if not isinstance(found, dict):
        raise _unusable(asset, type(found).__name__, f"{name} with an object")
    return found


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label") or {}
    count = len(named) or int(config.get("num_labels") or 2)
    return tuple(str(named.get(str(at), f"LABEL_{at}")) for at in range(count))


def _regression(config: Mapping[str, Any]) -> bool:
    """Return True if the model has a single output that is used as a number (FineWeb-Edu). The model's configuration
    may declare another problem type."""
    return config.get("problem_type") == "regression" or len(_labels(config)) == 1


def _unusable(asset: str, found: str, expected: str) -> IntegrityError:
    return IntegrityError(
        f"{asset} cannot be used: its files are not a transformers model with a classification head",
        found=found,
        expected=expected,
        remedy="add the folder that `save_pretrained` writes for model and tokenizer to `corpus.lists`",
    )


# A model that was trained before, given as files, which a list of the recipe names: what `plinth export restore`
# wrote, or a ready model of others (`fasttext`, `transformer`).
#
# A model trained on a bucket changes when the bucket grows, and then every document is scored again. A given model
# stays: only a new snapshot is scored, two workspaces score alike, and sidecars of the same bytes are reused.

KIND, VERSION = "given", "1"
#: Kinds that others made: known by nothing but their digest.
READY = ("fasttext", "transformer")


class GivenModelParams(Frozen):
    """Parameters of a pretrained model: location and kind of its files."""

    files: str = Field(
        description="Name of an entry of `corpus.lists`: the folder that `plinth export restore` wrote, a fastText "
        "model, or a Hugging Face folder."
    )
    of: Literal["classifier", "tagger", "ngram", "fasttext", "transformer"] = Field(
        description="Kind of the model; third-party: `fasttext` (`.bin`, `.ftz`) and `transformer` (a head for "
        "sequence classification)."
    )
    sha256: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        exclude_if=lambda given: not given,
        description="SHA-256 of the file, or of the output of `LC_ALL=C sha256sum *` in the folder; other files are "
        "errors. Required for models that drop documents and for third-party models.",
    )

    @model_validator(mode="after")
    def _known_by_digest(self) -> GivenModelParams:
        if self.of in READY and not self.sha256:
            raise ValueError(
                f"a ready {self.of} model needs `sha256`: as published by its author, or the output of `sha256sum` for "
                "a file that you trust (docs/learned-gates.md)"
            )
        return self


def train(
    ctx: Context, asset: str, params: GivenModelParams, documents: Mapping[str, Manifest], lists: Mapping[str, Manifest]
) -> Manifest:
    """Publish the model's files unchanged. The files are opened once to check that they are a model of the declared
    kind.

    Returns:
        Manifest of the files under their names. Statistics: `kind`, and the header of the model.

    Raises:
        IntegrityError: the digest, version or kind differs, a file is missing, or the files do not match.
    """
    parts = opened(lists[params.files].parts)
    if params.sha256 not in ("", digest(parts)):
        raise IntegrityError(
            f"{asset}: the files in lists/{params.files} do not match the digest in the recipe",
            found=f"sha256 {digest(parts)}",
            expected=params.sha256,
            remedy="restore the right files, or set the new digest if you trust them",
        )
    files = {part.name: ctx.store.open_path(part.blob) for part in parts}
    stats = {"kind": params.of, **_READERS[params.of](files, asset)}
    step = Step(name=f"models/{KIND}", version=VERSION, params=params.model_dump(mode="json"))
    return manifest(asset, step, {f"lists/{params.files}": lists[params.files]}, parts, stats)


def opened(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the files that a model is read from. In a folder, these are the files that the shell's `*` matches,
    because a cloned repository also has hidden and nested files."""
    visible = (part for part in parts if "/" not in part.name and not part.name.startswith("."))
    return tuple(parts) if len(parts) == 1 else tuple(visible)


def digest(parts: Sequence[Part]) -> str:
    """Return the SHA-256 of a single file. If there are several files, return the SHA-256 of the output of `sha256sum`
    for all files, sorted by name."""
    parts = opened(parts)
    if len(parts) == 1:
        return parts[0].blob.sha256
    lines = (f"{part.blob.sha256}  {part.name}\n" for part in sorted(parts, key=lambda part: part.name.encode()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _ngram(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
    model = ngram.read(files, asset)
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
    "fasttext": fasttext_described,
    "transformer": transformer_described,
}

TRAINER = ModelTrainer(
    kind=KIND,
    version=VERSION,
    description="Pretrained model, loaded from its files.",
    source="The author of the model; see the model's files.",
    params=GivenModelParams,
    buckets=lambda params: (),
    lists=lambda params: (params.files,),
    train=train,
    libraries=(),
)
