"""Compare greedy generation with a KV cache against full recomputation and transformers' `generate`.

    python tests/benchmarks/bench_generate.py

The same weights, one thread each; the tokens of all three are compared. Tokens of all sequences per second of one
core's work (CPU time). Writes tests/benchmarks/results/generate.json.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from plinth.model.decoder import Decoder, generate
from plinth.model.parameters import Model
from tests.benchmarks import model_text

SHAPES = {
    "llama": Model(layers=4, dim=256, heads=4, kv_heads=2, ffn_dim=704),
    "olmo2": Model(layers=4, dim=256, heads=4, kv_heads=2, ffn_dim=704, architecture="olmo2"),
}
PROMPT, NEW, VOCABULARY, SEQUENCE = 256, 96, 8192, 512
TARGET = Path(__file__).parent / "results" / "generate.json"

Tokens = list[list[int]]


def ours(model: Decoder, prompts: Tokens) -> Tokens:
    return generate(model, prompts, [NEW] * len(prompts), lambda logits, rows: logits.argmax(-1).tolist(), _never)


def _never(row: int, tokens: list[int]) -> bool:
    return False


@torch.inference_mode()
def again(model: Decoder, prompts: Tokens) -> Tokens:
    ids = torch.tensor(prompts)
    for _ in range(NEW):
        ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids[:, PROMPT:].tolist()  # type: ignore[no-any-return]


def theirs(peer: Any, prompts: Tokens) -> Tokens:
    ids = torch.tensor(prompts)
    seen = torch.ones_like(ids)
    found = peer.generate(ids, attention_mask=seen, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    return found[:, PROMPT:].tolist()  # type: ignore[no-any-return]


def compare(folder: Path, model: Decoder, prompts: Tokens) -> dict[str, Any]:
    import transformers

    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    peer.generation_config.eos_token_id = None
    ways: dict[str, Callable[[], Tokens]] = {
        "keys and values kept": lambda: ours(model, prompts),
        "everything again": lambda: again(model, prompts),
        "transformers": lambda: theirs(peer, prompts),
    }
    spent, written = {}, {}
    for name, way in ways.items():
        started = time.process_time()
        written[name] = way()
        spent[name] = time.process_time() - started
    speeds = {name: round(len(prompts) * NEW / seconds, 1) for name, seconds in spent.items()}
    kept = speeds["keys and values kept"]
    return {
        "tokens_per_second": speeds,
        "times_as_fast_as": {name: round(kept / speed, 2) for name, speed in speeds.items() if speed != kept},
        "same_tokens": all(tokens == written["keys and values kept"] for tokens in written.values()),
    }


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    for kind, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as name:
            model, tokenizer = model_text.folder(Path(name), shape, vocabulary=VOCABULARY, sequence_tokens=SEQUENCE)
            ids = tokenizer.encode(model_text.text(40_000)).ids
            for count in (1, 4) if kind == "llama" else (1,):
                prompts = [[0, *ids[at * 100 : at * 100 + PROMPT - 1]] for at in range(count)]
                found[f"{kind}, {count} at once"] = compare(Path(name), model, prompts)
    machine = {"threads": 1, "torch": torch.__version__, "transformers": version("transformers")}
    print(json.dumps(found, indent=2))
    setting = {"prompt_tokens": PROMPT, "new_tokens": NEW, "model": SHAPES["llama"].model_dump(mode="json")}
    TARGET.write_text(json.dumps({"machine": machine, **setting, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
