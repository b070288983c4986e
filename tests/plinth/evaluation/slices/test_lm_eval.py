"""lm-evaluation-harness as released, on the same weights and the same file: the same bits.

Documents that fit one window are compared as both score them. Longer ones the harness cuts into windows in which the
first tokens have one token of context, but for the last window, which is full; ours carry an eighth of the context
everywhere. So those are compared with our scoring over the harness's own windows.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth.evaluation.engine import batches
from plinth.evaluation.engine.batches import ScoringWindow
from plinth.evaluation.engine.checkpoint import load
from plinth.evaluation.engine.records import TokenBits
from plinth.evaluation.slices import tables
from plinth.evaluation.slices.tables import spans

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm_eval is not installed"),
]

S = 32  # tokens of the model's context
EDGES = ["größte Ärger\n\n\tder Welt", "日本語のテキスト", "x", " spaces before and after ", "\r\n\x00\ufeff", ""]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write independent text, short and long, with parts that are hard to cut."""
    texts = [*EDGES, *(topics[name][:size] for size in (30, 300) for name in ("if", "for", "yield"))]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def folder(model_directory: Callable[..., Path]) -> Path:
    return model_directory()


def texts_of(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


def rolling(folder: Path, texts: list[str]) -> NDArray[np.float64]:
    """Bits of each text by the harness's own `loglikelihood_rolling`."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|endoftext|>")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    peer = HFLM(pretrained=model, tokenizer=tokenizer, max_length=S, batch_size=8, device="cpu", backend="causal")
    asked = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
    return -np.array(peer.loglikelihood_rolling(asked, disable_tqdm=True)) / math.log(2)


def windows_of_the_harness(tokens: int, sequence_tokens: int, first: int = 1) -> Iterator[ScoringWindow]:
    """Its own windows over positions, in our terms."""
    from lm_eval.utils import get_rolling_token_windows

    assert first == 1
    for inputs, targets in get_rolling_token_windows(list(range(1, tokens + 1)), 0, sequence_tokens, context_len=1):
        yield ScoringWindow(inputs[0], targets[-1], targets[0])


def test_bits_of_rolling_likelihood(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, ours = texts_of(file), load(folder)
    theirs = rolling(folder, texts)
    own = ours.documents(texts)
    short = own.tokens <= S
    assert 6 <= short.sum() < len(texts)
    np.testing.assert_allclose(own.bits[short], theirs[short], rtol=1e-6)
    assert abs(own.bits[~short] / theirs[~short] - 1).min() > 1e-6
    monkeypatch.setattr(batches, "windows", windows_of_the_harness)
    again = ours.documents(texts).bits
    np.testing.assert_allclose(again, theirs, rtol=1e-6)
    assert again.sum() == pytest.approx(theirs.sum(), rel=1e-6)  # and so of bits per byte


def test_two_models_with_tokenizers_of_their_own_are_compared_byte_by_byte(
    folder: Path, file: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """The second model has the same weights but cuts text into single bytes, as a tokenizer without merges does."""
    texts, other = texts_of(file), shutil.copytree(folder, tmp_path / "other")
    bytewise = json.loads(tokenizer.to_str())
    bytewise["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(bytewise))
    a, b = (tables.by_text(load(one).documents(texts, per_token=True)) for one in (folder, other))
    assert sum(len(one.ends) for one in b) == sum(len(text.encode()) for text in texts)
    for text, one, two in zip(texts, a, b, strict=True):
        one, two = (TokenBits(each.ends, tables.on_grid(each.bits)) for each in (one, two))
        found = spans(one, two, 1)
        assert found.ends.tolist() == one.ends.tolist()  # every cut of the first is one of the second
        assert found.a.tolist() == one.bits.tolist()
        assert found.b.sum() == two.bits.sum()
        assert found.ends[-1:].tolist() == ([len(text.encode())] if text else [])
