"""Model class of lm-evaluation-harness over the engine, without torch.

Prompts follow the start-of-document token of training (as with `HFLM(add_bos_token=True)`). Windows of long documents,
truncation from the left, and the boundary between prompt and continuation are the same as in lm-evaluation-harness.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from plinth.errors import StageError
from plinth.evaluation.tasks.job import Answerer
from plinth.model.hugging_face import CONFIG, TOKENIZER

#: Supported generation settings of a task. Other settings are rejected, not ignored.
GENERATION = {"until", "max_gen_toks", "do_sample", "temperature", "top_p"}


class CheckpointLM(LM):  # type: ignore[misc]
    """Adapter through which lm-evaluation-harness uses a checkpoint.

    Args:
        model: model that answers the requests.
        folder: folder with the checkpoint's `tokenizer.json` and `config.json`.
        seed: seed of sampled generation.
    """

    def __init__(self, model: Answerer, folder: Path, seed: int = 0) -> None:
        super().__init__()
        config = json.loads((folder / CONFIG).read_text())
        self.model, self.seed = model, seed
        self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self.tokenizer.encode_special_tokens = True  # text never becomes a special token, as in the shards
        self.max_length = int(config["max_position_embeddings"])
        self.start, self.end = (
            _first(config.get("bos_token_id"), config["eos_token_id"]),
            _first(config["eos_token_id"]),
        )

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Return ln p of each continuation after its context, and a flag that greedy decoding yields the
        continuation."""
        found = self.model.likelihoods([one.args for one in requests])
        return [(-bits * math.log(2), greedy) for bits, greedy in found]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Return ln p of each text, in windows of the training length with one token of context."""
        owners: list[int] = []
        pairs: list[tuple[list[int], list[int]]] = []
        for number, encoded in enumerate(self._encode([one.args[0] for one in requests])):
            windows = get_rolling_token_windows(encoded, self.start, self.max_length, 1)
            for window in map(make_disjoint_window, windows):
                owners.append(number)
                pairs.append(window)
        sums: list[list[float]] = [[] for _ in requests]
        for number, (bits, _) in zip(owners, self.model.likelihoods(pairs), strict=True):
            sums[number].append(-bits * math.log(2))
        return [math.fsum(one) for one in sums]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return the text generated after each context, up to a stop sequence."""
        groups: dict[str, list[int]] = {}
        for number, one in enumerate(requests):
            groups.setdefault(json.dumps(one.args[1] or {}, sort_keys=True), []).append(number)
        texts = [""] * len(requests)
        for settings, numbers in groups.items():
            prompts = self._encode([requests[number].args[0] for number in numbers])
            for number, text in zip(numbers, self._generate(prompts, json.loads(settings)), strict=True):
                texts[number] = text
        return texts

    def _generate(self, prompts: Sequence[list[int]], settings: Mapping[str, Any]) -> list[str]:
        options = dict(normalize_gen_kwargs(dict(settings)))
        until = handle_stop_sequences(
            options.get("until"), eos=self.tokenizer.decode([self.end], skip_special_tokens=False)
        )
        sampled = bool(options.get("do_sample"))
        unknown = sorted(set(options) - GENERATION) if sampled else []
        room = self.max_length - options["max_gen_toks"]
        if unknown or room <= 0:
            raise StageError(
                "a task has unsupported generation settings",
                found=f"generation_kwargs {dict(settings)}",
                expected=f"max_gen_toks below {self.max_length}; supported settings for sampling: "
                f"{', '.join(sorted(GENERATION))}",
                remedy="set generation_kwargs in the task's YAML",
            )
        sampling = {
            "max_tokens": options["max_gen_toks"],
            "temperature": options.get("temperature", 1.0) if sampled else 0.0,
            "top_p": options.get("top_p", 1.0) if sampled else 1.0,
            "seed": self.seed,
            "stop": tuple(one for one in until if one),
        }
        given = [[self.start, *prompt][-room:] for prompt in prompts]
        return [postprocess_generated_text(text, until, None) for text in self.model.generate(given, sampling)]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def _first(*values: int | Sequence[int] | None) -> int:
    """Return the first token id in a configuration field that has one id, several, or none."""
    for value in values:
        if isinstance(value, int):
            return value
        if value:
            return int(value[0])
    raise ValueError("the configuration names no end-of-text token")
