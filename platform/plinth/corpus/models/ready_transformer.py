"""A ready classification head: a Hugging Face folder of `AutoModelForSequenceClassification`, scored in batches.

Weights are safetensors; nothing is unpickled, no code of the folder runs, nothing is downloaded. `torch` and
`transformers` are imported when a worker loads the model, and by nothing that only describes it.

Letters: D documents, L labels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from plinth.compute.threads import torch_threads
from plinth.errors import IntegrityError, MissingError
from plinth_text.arrays import F32, I32, I64

#: Endings of files that are opened; others are as if they were not there.
OPENED = (".json", ".safetensors", ".txt", ".model")
#: Tokens of a batch with its padding: 16 texts of 512. It is the same on every device, so that batches are, too.
BATCH_TOKENS = 8192
#: Characters that are looked at for each token; a text that has too few tokens in them is read whole.
TOKEN_CHARACTERS = 32
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True)
class HeadScores:
    """What a head says of texts.

    Args:
        scores: probabilities of the labels, or the numbers of a regression, [D, L].
        tokens: how many were read, those that the tokenizer adds counted, [D].
    """

    scores: F32
    tokens: I32


def described(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
    """Facts of the head for the catalogue, from the files alone.

    Raises:
        IntegrityError: the folder is no such head, brings code of its own, or has no safetensors.
    """
    config = _config(files, asset)
    names = _labels(config)
    return {"architecture": config["architectures"][0], "labels": ", ".join(names), "regression": _regression(config)}


class TransformerHead:
    """A head in memory, on a GPU where there is one.

    Args:
        files: of the folder, by name.
        asset: for messages.
        max_tokens: of a text that are read, at most what the model has positions for.

    Raises:
        IntegrityError: the files are no such head.
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
        """Scores of texts. A batch holds texts of like length, so little of it is padding."""
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
    """The first `most` characters, up to a space: what follows changes no token before it."""
    return text if len(text) <= most else text[: max(text.rfind(" ", 0, most), 1)]


def _batches(lengths: I32) -> Iterator[I64]:
    """Rows by length, the longest first, at most `BATCH_TOKENS` padded tokens at once."""
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < order.size:
        size = max(1, BATCH_TOKENS // max(1, int(lengths[order[at]])))
        yield order[at : at + size]
        at += size


@contextmanager
def _folder(files: Mapping[str, Path]) -> Iterator[str]:
    """The files that may be opened, under their names."""
    with TemporaryDirectory(prefix="plinth-head-") as folder:
        for name, path in files.items():
            if name.endswith(OPENED):
                (Path(folder) / name).symlink_to(path.resolve())
        yield folder


def _config(files: Mapping[str, Path], asset: str) -> dict[str, Any]:
    config, tokenizer = (_json(files, name, asset) for name in ("config.json", "tokenizer_config.json"))
    if "auto_map" in config or "auto_map" in tokenizer:
        found = "`auto_map` in a configuration"
        raise _unusable(asset, found, "an architecture of transformers itself: code of a folder is not run")
    architectures = config.get("architectures")
    head = architectures[0] if isinstance(architectures, list) and architectures else None
    if not str(head).endswith("ForSequenceClassification"):
        raise _unusable(asset, f"architecture {head}", "a head for sequence classification")
    if not any(name.endswith(".safetensors") for name in files):
        raise _unusable(asset, ", ".join(sorted(files)), "weights as safetensors; others can hold programs")
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
    """One number is taken as it is, as FineWeb-Edu's is, also where the folder does not say what it is."""
    return config.get("problem_type") == "regression" or len(_labels(config)) == 1


def _unusable(asset: str, found: str, expected: str) -> IntegrityError:
    return IntegrityError(
        f"{asset} cannot be used: its files are no head of transformers",
        found=found,
        expected=expected,
        remedy="name the folder that `save_pretrained` writes for model and tokenizer in `corpus.lists`",
    )
