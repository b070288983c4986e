"""Generation with keys and values kept: the tokens of Hugging Face's own, and of computing everything again."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from plinth.model.decoder import Decoder, generate
from tests.model_folder import scrambled
from tests.plinth.model.test_parity import KINDS, VOCABULARY, export

PROMPTS = [[0, 5, 9, 7], [0], [0, *range(20)], [0, 3, 3]]
LIMITS = [12, 20, 9, 20]


def greedy(logits: Tensor, rows: object) -> list[int]:
    return [int(token) for token in logits.argmax(-1)]


def again(model: Decoder, prompt: list[int], limit: int) -> list[int]:
    """Every token from a pass over all before it."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(limit):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    "kind",
    [
        kind if number % 3 == 0 else pytest.param(kind, marks=pytest.mark.exhaustive)
        for number, kind in enumerate(KINDS)
    ],
)
def test_the_tokens_of_computing_everything_again(kind: str) -> None:
    model = scrambled(KINDS[kind], VOCABULARY)
    found = generate(model, PROMPTS, LIMITS, greedy, lambda row, tokens: False)
    assert found == [again(model, prompt, limit) for prompt, limit in zip(PROMPTS, LIMITS, strict=True)]


@pytest.mark.parametrize(
    "kind", ["tied", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("qk norm", "olmo2, untied"))]
)
def test_the_tokens_of_hugging_face(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = scrambled(KINDS[kind], VOCABULARY)
    export(dict(model.named_parameters()), model.config, tmp_path)
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    peer.generation_config.eos_token_id = None
    ours = generate(model, PROMPTS, [20] * 4, greedy, lambda row, tokens: False)
    for prompt, found in zip(PROMPTS, ours, strict=True):
        ids = torch.tensor([prompt])
        seen = torch.ones_like(ids)  # or they take id 0 for padding
        theirs = peer.generate(ids, attention_mask=seen, max_new_tokens=20, do_sample=False, pad_token_id=0)
        assert theirs[0, len(prompt) :].tolist() == found


def test_a_sequence_that_ends_leaves_the_others_as_they_are() -> None:
    model = scrambled(KINDS["tied"], VOCABULARY)
    whole = generate(model, PROMPTS, LIMITS, greedy, lambda row, tokens: False)
    ended = generate(model, PROMPTS, LIMITS, greedy, lambda row, tokens: row in (0, 2) and len(tokens) == 3)
    assert ended == [whole[0][:3], whole[1], whole[2][:3], whole[3]]
