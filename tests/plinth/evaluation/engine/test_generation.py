"""Text after prompts: what ends it, draws that only seed and prompt decide, the probabilities drawn from."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plinth.evaluation.engine.checkpoint import Checkpoint, load
from plinth.evaluation.engine.records import Sampling
from plinth.model.decoder import Decoder

PROMPTS = ["the quick", "the lazy dog", "", (0, 7, 9), "the quick", "jumps over the lazy"]
ModelDirectory = Callable[..., Path]


def scrambled(model: Decoder) -> None:
    """Weights so large that no token is certain and none is as good as another."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)


@pytest.fixture
def checkpoint(model_directory: ModelDirectory) -> Checkpoint:
    """Nothing ends its documents, so that lengths are known."""
    return load(model_directory(scrambled))._replace(ends=())


def test_greedy_text_is_its_tokens_on_any_threads_in_any_order(checkpoint: Checkpoint) -> None:
    sampling = Sampling(max_tokens=10)
    found = checkpoint.generate(PROMPTS, sampling)
    for one in found:
        assert (len(one.tokens), one.ended, one.cut) == (10, "length", False)
        assert one.text == checkpoint.tokenizer.decode(list(one.tokens), skip_special_tokens=False)
    assert found[0] == found[4] != found[1]
    assert checkpoint.generate(PROMPTS[::-1], sampling, workers=3) == found[::-1]
    assert checkpoint.generate([], sampling) == []


def test_stop_strings_end_the_text_and_are_left_out(checkpoint: Checkpoint) -> None:
    (whole,) = checkpoint.generate(["the quick"], Sampling(max_tokens=20))
    for stop in (whole.text[5:8], whole.text[3], "größe" + whole.text):
        (found,) = checkpoint.generate(["the quick"], Sampling(max_tokens=20, stop=("\0never", stop)))
        at = whole.text.find(stop)
        assert found.text == (whole.text[:at] if at >= 0 else whole.text)
        assert found.ended == ("stop" if at >= 0 else "length")
        assert found.tokens == whole.tokens[: len(found.tokens)]
        assert stop not in checkpoint.tokenizer.decode(list(found.tokens[:-1]), skip_special_tokens=False)


def test_the_end_of_a_document_ends_the_text(checkpoint: Checkpoint) -> None:
    (whole,) = checkpoint.generate(["the quick"], Sampling(max_tokens=20))
    ended = checkpoint._replace(ends=(whole.tokens[4],))
    (found,) = ended.generate(["the quick"], Sampling(max_tokens=20))
    assert found.ended == "end_of_text"
    assert found.tokens == whole.tokens[: whole.tokens.index(whole.tokens[4])]


def test_prompt_and_text_fit_the_training_length(checkpoint: Checkpoint) -> None:
    long = "the lazy dog runs " * 30
    (alone,) = checkpoint.generate([long], Sampling(max_tokens=1))
    assert (len(alone.tokens), alone.cut) == (1, True)
    (found,) = checkpoint.generate([long], Sampling(max_tokens=1000))
    assert (len(found.tokens), found.ended, found.cut) == (16, "length", True)
    assert len(checkpoint.generate(["x"], Sampling(max_tokens=1000))[0].tokens) == 32 - 2


def test_draws_depend_on_seed_and_prompt_alone(checkpoint: Checkpoint) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=5)
    found = checkpoint.generate(PROMPTS, sampling)
    assert checkpoint.generate(PROMPTS, sampling, workers=2) == found
    assert checkpoint.generate([PROMPTS[1]], sampling)[0] == found[1]
    assert found[0] != found[4]  # the same prompt again is another draw
    assert checkpoint.generate(PROMPTS, sampling.model_copy(update={"seed": 6})) != found


@pytest.mark.parametrize("top_p", [pytest.param(1.0, marks=pytest.mark.exhaustive), 0.5])
def test_tokens_come_as_often_as_they_are_probable(checkpoint: Checkpoint, top_p: float) -> None:
    temperature, times = 0.7, 3000
    with torch.inference_mode():
        logits = checkpoint.model(torch.tensor([[0, 7]]))[0, -1].double()
    chances = torch.softmax(logits / temperature, -1).sort(descending=True)
    kept = int((chances.values.cumsum(0) < top_p).sum()) + 1
    sampling = Sampling(max_tokens=1, temperature=temperature, top_p=top_p, seed=1)
    found = Counter(one.tokens[0] for one in checkpoint.generate([(0, 7)] * times, sampling))
    ids = chances.indices[:kept].tolist()
    if top_p < 1:
        assert set(found) <= set(ids)
    for token, chance in zip(ids[:5], (chances.values[:5] / chances.values[:kept].sum()).tolist(), strict=False):
        assert abs(found[token] / times - chance) < 4 * math.sqrt(chance * (1 - chance) / times)


def test_a_probability_of_next_to_nothing_leaves_the_most_probable(checkpoint: Checkpoint) -> None:
    greedy = checkpoint.generate(PROMPTS, Sampling(max_tokens=8))
    drawn = checkpoint.generate(PROMPTS, Sampling(max_tokens=8, temperature=1.0, top_p=1e-9))
    assert drawn == greedy
