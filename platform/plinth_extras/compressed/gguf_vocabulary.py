"""The tokenizer as GGUF has it: tokens by id, kinds, merges, and the name of the pattern that cuts words.

llama.cpp knows patterns by name only and computes nothing else, so a tokenizer whose words it would cut otherwise is
refused: the file would load, and encode other tokens than the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from plinth.errors import CheckpointError
from plinth.extensions import require
from plinth.model.hugging_face import TOKENIZER

#: Patterns of Llama 3 and Qwen 2 as their `tokenizer.json` has them.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

#: llama.cpp's name of each way to cut words (`llm_tokenizer_bpe` of its `llama-vocab.cpp`). `smollm`: each digit alone,
#: then GPT-2's pattern.
_WORDS: Final[Mapping[tuple[str, ...], str]] = {
    ("bytes",): "gpt-2",
    ("digits", "bytes"): "smollm",
    (_LLAMA3, "plain bytes"): "llama-bpe",
    (_QWEN2, "plain bytes"): "qwen2",
}


def describe(writer: Any, plain: Path, config: Mapping[str, Any]) -> None:
    """Write the keys of the tokenizer of a model folder.

    Raises:
        CheckpointError: llama.cpp would encode text otherwise.
    """
    gguf = require("gguf", "quantised")
    described = json.loads((plain / TOKENIZER).read_bytes())
    model, size = described["model"], int(config["vocab_size"])
    words = words_of(described)
    added = {one["id"]: one for one in described["added_tokens"]}
    names = {index: token for token, index in model["vocab"].items()}
    names |= {index: one["content"] for index, one in added.items()}
    if max(names) >= size:
        raise CheckpointError("the tokenizer has more tokens than the model", found=max(names) + 1, expected=size)
    kinds = gguf.TokenType
    tokens = [names.get(index, f"[PAD{index}]") for index in range(size)]
    types = [
        (kinds.CONTROL if added[index]["special"] else kinds.USER_DEFINED)
        if index in added
        else kinds.NORMAL if index in names else kinds.UNUSED
        for index in range(size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in model["merges"]])
    end = int(config["eos_token_id"])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    if "pad_token_id" in config:
        writer.add_pad_token_id(int(config["pad_token_id"]))
    writer.add_add_bos_token(True)  # as the template of `tokenizer.json`
    writer.add_add_eos_token(False)


def words_of(tokenizer: Mapping[str, Any]) -> str:
    """llama.cpp's name of the way in which a tokenizer cuts words.

    Raises:
        CheckpointError: it has none.
    """
    model, normalizer = tokenizer["model"], tokenizer.get("normalizer")
    cut = tokenizer.get("pre_tokenizer") or {}
    steps = cut.get("pretokenizers", [cut])
    found = _WORDS.get(tuple(_step(one) for one in steps))
    known = normalizer is None or (found == "qwen2" and normalizer == {"type": "NFC"})
    if model["type"] != "BPE" or model.get("byte_fallback") or found is None or not known:
        raise CheckpointError(
            "llama.cpp would encode text otherwise than this tokenizer",
            found=f"{model['type']}, words cut by {', '.join(str(one.get('type')) for one in steps)}",
            expected="`tokenizer: {kind: bpe-bytes, digits: single}` or `digits: runs`, or that of Llama 3 or Qwen 2",
            remedy="export int8 or int4, whose tokenizer.json stays as it is",
        )
    return found


def _step(described: Mapping[str, Any]) -> str:
    kind = described.get("type")
    if kind == "Digits" and described.get("individual_digits"):
        return "digits"
    if kind == "ByteLevel" and not described.get("add_prefix_space"):
        return "bytes" if described.get("use_regex", True) else "plain bytes"
    if kind == "Split" and described.get("behavior") == "Isolated" and not described.get("invert"):
        return str(described["pattern"].get("Regex"))
    return f"unknown {kind}"
