"""`plinth model generate`: the tokens of the model that is named, prompts from a file, and names that nothing has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from plinth.model.decoder import Decoder
from tests.jobs.cli.test_export_model import KINDS, committed, tokenizer

__all__ = ["tokenizer"]  # a fixture

Plinth = Callable[..., Any]


def written(model: Decoder, tokenizer: Tokenizer, prompt: str, count: int) -> str:
    """Greedy text from passes over everything before."""
    ids = [0, *tokenizer.encode(prompt).ids]
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    found: str = tokenizer.decode(ids[-count:], skip_special_tokens=False)
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_and_a_folder_of_its_weights_write_the_same(plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer) -> None:
    run, model = committed(tmp_path / "workspace", tokenizer, KINDS["muP"], torch.float32)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a text"}\nnot json\n\n{"other": 1}\n{"prompt": "small"}\n')
    given = ("a small", "--file", "prompts.jsonl", "--max-tokens", "5", "--json", "-w", run.workspace)
    told = plinth("model", "generate", "latest", *given)
    assert told.code == 0, told.err
    assert "prompts.jsonl: skipped 2 lines without a JSON object with a prompt" in told.err
    expected = [written(model, tokenizer, prompt, 5) for prompt in ("a small", "a text", "small")]
    assert [one["text"] for one in json.loads(told.out)] == expected
    assert plinth("export", "model", "latest", "folder", "--unreleased", "-w", run.workspace).code == 0
    plain = plinth("model", "generate", "folder", "a small", "--max-tokens", "5", "-w", run.workspace)
    assert plain.code == 0, plain.err
    assert plain.out.strip() == expected[0].strip()


@pytest.mark.slow
def test_a_hostile_file_of_prompts_costs_its_lines(plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer) -> None:
    run, _ = committed(tmp_path / "workspace", tokenizer, KINDS["tied"], torch.float32)
    lines = [b"\xff\xfe", b'{"prompt": "\\ud800"}', b'{"prompt": 3}', b"[1]", b"[" * 100_000, b'"text"', b"\x00"]
    good = json.dumps({"prompt": "a\x1b[2J small\u202e"}).encode()
    (tmp_path / "prompts.jsonl").write_bytes(b"\n".join([b"\xef\xbb\xbf" + good, *lines, b"", good]))
    given = ("--file", "prompts.jsonl", "--max-tokens", "3", "-w", run.workspace)
    shown = plinth("model", "generate", "latest", *given)
    assert shown.code == 0, shown.err
    assert f"prompts.jsonl: skipped {len(lines)} lines without a JSON object with a prompt" in shown.err
    assert shown.out.count("a\\x1b[2J small\\u202e") == 2
    assert not {"\x1b", "\u202e"} & set(shown.out)
    refused = plinth("model", "generate", "latest", "\udcff", "-w", run.workspace)
    assert (refused.code, "is not valid UTF-8" in refused.err) == (2, True)
    (tmp_path / "prompts.jsonl").write_bytes(b"")
    assert plinth("model", "generate", "latest", *given).code == 2


def test_what_has_no_such_name_and_no_prompt_are_told(plinth: Plinth, tmp_path: Path, tokenizer: Tokenizer) -> None:
    run, _ = committed(tmp_path / "workspace", tokenizer, KINDS["tied"], torch.float32)
    for target in ("nothing", "abcdef12"):
        told = plinth("model", "generate", target, "a text", "-w", run.workspace)
        assert (told.code, "no model" in told.err, "a folder with weights" in told.err) == (3, True, True)
    told = plinth("model", "generate", "demo:7", "a text", "-w", run.workspace)
    assert (told.code, "has no checkpoint 7" in told.err) == (3, True)
    told = plinth("model", "generate", "latest", "-w", run.workspace)
    assert (told.code, "no prompt" in told.err) == (2, True)
