"""Bits under a model: exact answers, the same on any number of threads and in any order."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from plinth.errors import CheckpointError, TrainingError
from plinth.evaluation.engine import batches
from plinth.evaluation.engine.checkpoint import Checkpoint, load
from plinth.evaluation.engine.records import Request
from plinth.model.decoder import Decoder

TEXTS = ["the fox jumps", "", "größte", "the lazy dog runs away " * 8, "x", "\x00<|endoftext|>\n"]
QUESTION = "the quick brown fox jumps over the"
REQUESTS = [
    Request(QUESTION, " lazy dog"),
    Request(QUESTION, " größte Ärger"),
    Request(QUESTION, " lazy dog"),
    Request(QUESTION, "x"),
    Request("the dog", " runs"),
    Request("", "jumps over"),
    Request((0, 5, 9), (7, 3)),
    Request((), (7,)),
    Request("the fox ", "jumps"),
    Request("dog " * 40, "runs away"),
    Request("y", "the lazy dog " * 20),
    Request("nothing", ""),
]
ModelDirectory = Callable[..., Path]


def zero(model: Decoder) -> None:
    model.embed_tokens.zero_()


def nan(model: Decoder) -> None:
    model.embed_tokens[5] = math.nan


def token_by_token(checkpoint: Checkpoint, ids: list[int], first: int) -> tuple[float, bool]:
    """Bits of the tokens from `first` on, each from a forward pass of its own over all before it."""
    bits, greedy = 0.0, True
    with torch.inference_mode():
        for i in range(first, len(ids)):
            logits = checkpoint.model(torch.tensor([ids[max(0, i - checkpoint.sequence_tokens) : i]]))[0, -1].double()
            bits -= float(torch.log_softmax(logits, -1)[ids[i]]) / math.log(2)
            greedy &= int(logits.argmax()) == ids[i]
    return bits, greedy


def test_a_model_that_knows_nothing_pays_log2_of_the_vocabulary(model_directory: ModelDirectory) -> None:
    checkpoint = load(model_directory(zero))
    found = checkpoint.documents(TEXTS)
    np.testing.assert_allclose(found.bits, found.tokens * math.log2(checkpoint.model.vocab_size), rtol=1e-6)
    assert found.tokens[1] == 0


def test_carried_context_is_what_windows_say(model_directory: ModelDirectory) -> None:
    checkpoint = load(model_directory())
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
    assert checkpoint.documents([text]).bits[0] == pytest.approx(expected / math.log(2), rel=1e-5)


def test_continuations_are_scored_as_each_would_be_alone(model_directory: ModelDirectory) -> None:
    checkpoint = load(model_directory(lambda model: model.embed_tokens.mul_(4)))
    streams = batches.requests(checkpoint.tokenizer, 0, REQUESTS)
    planned = batches.plan(streams, checkpoint.sequence_tokens)
    assert any(row.shared for batch in planned for row in batch.rows)
    found = checkpoint.likelihoods(REQUESTS)
    for number, stream in enumerate(streams):
        if number == 10:
            continue  # longer than a window: below
        over = max(0, len(stream.ids) - checkpoint.sequence_tokens - 1)
        bits, greedy = token_by_token(checkpoint, stream.ids[over:].tolist(), stream.first - over)
        assert found.bits[number] == pytest.approx(bits, rel=1e-5)
        assert bool(found.greedy[number]) == greedy
    assert np.flatnonzero(found.cut).tolist() == [9, 10]
    assert found.tokens[10] == streams[10].scored > checkpoint.sequence_tokens
    assert (found.tokens[11], found.bits[11]) == (0, 0.0)
    assert found.bits[0] == found.bits[2]


def test_greedy_is_what_the_model_would_write(model_directory: ModelDirectory) -> None:
    checkpoint = load(model_directory())
    ids = [0, 9, 12]
    with torch.inference_mode():
        for _ in range(4):
            ids.append(int(checkpoint.model(torch.tensor([ids]))[0, -1].argmax()))
    prompt, written = tuple(ids[:3]), tuple(ids[3:])
    other = (*written[:3], (written[3] + 1) % 320)
    found = checkpoint.likelihoods([Request(prompt, written), Request(prompt, other)])
    assert found.greedy.tolist() == [True, False]


@pytest.mark.parametrize(
    ("prompt", "continuation", "scored"),
    [
        ("the fox", " jumps", 0),
        ("the fox ", "jumps", 0),
        ("the fox\n ", " over the", 0),
        ("", "the", 0),
        ("the d", "og runs", 0),
        ("lazy do", "g", 1),  # both together have fewer tokens than the prompt
    ],
)
def test_tokens_are_cut_as_lm_evaluation_harness_does(
    model_directory: ModelDirectory, prompt: str, continuation: str, scored: int
) -> None:
    """Worked out with the tokenizer alone: white space moves over, and the whole is encoded at once."""
    tokenizer = load(model_directory()).tokenizer
    spaces = len(prompt) - len(prompt.rstrip())
    before = prompt[: len(prompt) - spaces]
    whole = tokenizer.encode(prompt + continuation).ids
    (stream,) = batches.requests(tokenizer, 0, [Request(prompt, continuation)])
    assert stream.ids.tolist() == [0, *whole]
    assert stream.scored == (scored or len(whole) - len(tokenizer.encode(before).ids)) >= 1


def test_same_bits_on_any_number_of_threads_and_in_any_order(model_directory: ModelDirectory) -> None:
    checkpoint = load(model_directory())
    documents, requests = checkpoint.documents(TEXTS), checkpoint.likelihoods(REQUESTS)
    assert np.array_equal(checkpoint.documents(TEXTS, workers=3, batch_tokens=4096).bits, documents.bits)
    assert np.array_equal(checkpoint.documents(TEXTS[::-1], workers=3).bits[::-1], documents.bits)
    assert np.array_equal(checkpoint.likelihoods(REQUESTS[::-1], workers=3).bits[::-1], requests.bits)


@pytest.mark.parametrize("batch_tokens", [1, 64, 300, 100_000])
def test_the_size_of_batches_changes_next_to_nothing(model_directory: ModelDirectory, batch_tokens: int) -> None:
    checkpoint = load(model_directory())
    documents, requests = checkpoint.documents(TEXTS), checkpoint.likelihoods(REQUESTS)
    np.testing.assert_allclose(checkpoint.documents(TEXTS, batch_tokens=batch_tokens).bits, documents.bits, rtol=1e-6)
    found = checkpoint.likelihoods(REQUESTS, batch_tokens=batch_tokens)
    np.testing.assert_allclose(found.bits, requests.bits, rtol=1e-6)
    assert np.array_equal(found.greedy, requests.greedy)


def test_bits_of_tokens_add_up_and_end_where_their_bytes_do(model_directory: ModelDirectory) -> None:
    checkpoint = load(model_directory())
    found = checkpoint.documents(TEXTS, per_token=True)
    for number, text in enumerate(TEXTS):
        tokens = found.of(number)
        assert math.fsum(tokens.bits) == found.bits[number]
        pieces = [len(data) for data in np.split(np.frombuffer(text.encode(), np.uint8), tokens.ends)]
        assert sum(pieces) == len(text.encode())
        assert pieces[-1] == 0 and (tokens.ends[-1:] == len(text.encode())).all()  # noqa: PT018
        assert tokens.ends.size == found.tokens[number]


def test_progress_counts_every_token(model_directory: ModelDirectory) -> None:
    seen: list[tuple[int, int]] = []
    texts = TEXTS[:3]
    found = load(model_directory()).documents(texts, workers=2, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (found.tokens.sum(), found.tokens.sum())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_numbers_that_are_none_fail_by_name(model_directory: ModelDirectory) -> None:
    checkpoint = load(model_directory(nan))
    with pytest.raises(TrainingError, match="not finite"):
        checkpoint.documents(TEXTS)
    with pytest.raises(TrainingError, match="not finite"):
        checkpoint.likelihoods([Request("the", " fox")])


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_missing_or_broken_file_is_named(model_directory: ModelDirectory, name: str) -> None:
    folder = model_directory()
    (folder / name).write_bytes(b"{broken")
    with pytest.raises(CheckpointError):
        load(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError):
        load(folder)


def test_a_tokenizer_that_loses_text_is_refused(model_directory: ModelDirectory) -> None:
    from tokenizers import normalizers

    checkpoint = load(model_directory())
    checkpoint.tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(TrainingError, match="tokenizer is lossy"):
        checkpoint.documents(["The Fox"])
