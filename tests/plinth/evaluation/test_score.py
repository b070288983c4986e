"""Bits of documents under a model: exact answers, and the same on any number of threads."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from plinth.errors import CheckpointError, TrainingError
from plinth.evaluation import score
from plinth.model.decoder import Decoder

TEXTS = ["the fox jumps", "", "größte", "the lazy dog runs away " * 8, "x", "\x00<|endoftext|>\n"]
ModelDirectory = Callable[..., Path]


def zero(model: Decoder) -> None:
    model.embed_tokens.zero_()


def nan(model: Decoder) -> None:
    model.embed_tokens[5] = math.nan


def test_a_model_that_knows_nothing_pays_log2_of_the_vocabulary(model_directory: ModelDirectory) -> None:
    checkpoint = score.load(model_directory(zero))
    found = score.score(checkpoint, TEXTS, 4, 1)
    np.testing.assert_allclose(found.bits, found.tokens * math.log2(checkpoint.model.vocab_size), rtol=1e-6)
    assert found.tokens[1] == 0


def test_agrees_with_scoring_token_by_token(model_directory: ModelDirectory) -> None:
    checkpoint = score.load(model_directory())
    text = "the quick fox runs from the dog"
    found = score.score(checkpoint, [text], 4, 1)
    stream = [0, *checkpoint.tokenizer.encode(text).ids]
    assert len(stream) - 1 <= checkpoint.sequence_tokens
    expected = 0.0
    with torch.inference_mode():
        for i in range(1, len(stream)):
            logits = checkpoint.model(torch.tensor([stream[:i]]))[0, -1].double()
            expected -= float(torch.log_softmax(logits, -1)[stream[i]]) / math.log(2)
    assert found.bits[0] == pytest.approx(expected, rel=1e-5)
    assert found.tokens[0] == len(stream) - 1


def test_carried_context_is_what_windows_say(model_directory: ModelDirectory) -> None:
    checkpoint = score.load(model_directory())
    text = "the lazy dog runs away from the fox and jumps " * 4
    stream = [0, *checkpoint.tokenizer.encode(text).ids]
    size = checkpoint.sequence_tokens
    assert size < len(stream) - 1 <= size + size * 7 // 8
    with torch.inference_mode():
        first = torch.log_softmax(checkpoint.model(torch.tensor([stream[:size]]))[0].double(), -1)
        start = size - size // 8
        second = torch.log_softmax(checkpoint.model(torch.tensor([stream[start:-1]]))[0].double(), -1)
    expected = -sum(float(first[i - 1, stream[i]]) for i in range(1, size + 1))
    expected -= sum(float(second[i - 1 - start, stream[i]]) for i in range(size + 1, len(stream)))
    assert score.score(checkpoint, [text], 2, 1).bits[0] == pytest.approx(expected / math.log(2), rel=1e-5)


def test_same_bits_on_any_number_of_threads_and_close_for_any_batch(model_directory: ModelDirectory) -> None:
    checkpoint = score.load(model_directory())
    one = score.score(checkpoint, TEXTS, 2, 1)
    assert np.array_equal(score.score(checkpoint, TEXTS, 2, 3).bits, one.bits)
    np.testing.assert_allclose(score.score(checkpoint, TEXTS, 16, 1).bits, one.bits, rtol=1e-5)


def test_progress_counts_every_token(model_directory: ModelDirectory) -> None:
    seen: list[tuple[int, int]] = []
    found = score.score(score.load(model_directory()), TEXTS, 2, 2, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (found.tokens.sum(), found.tokens.sum())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_numbers_that_are_none_fail_by_name(model_directory: ModelDirectory) -> None:
    with pytest.raises(TrainingError, match="not numbers"):
        score.score(score.load(model_directory(nan)), TEXTS, 4, 1)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_missing_or_broken_file_is_named(model_directory: ModelDirectory, name: str) -> None:
    folder = model_directory()
    (folder / name).write_bytes(b"{broken")
    with pytest.raises(CheckpointError):
        score.load(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError):
        score.load(folder)


def test_a_tokenizer_that_loses_text_is_refused(model_directory: ModelDirectory) -> None:
    from tokenizers import normalizers

    checkpoint = score.load(model_directory())
    checkpoint.tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(TrainingError, match="does not give the text back"):
        score.score(checkpoint, ["The Fox"], 2, 1)
