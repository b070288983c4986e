"""Template of a `tokenizer.json`: the tokens added around a text, and the padding token.

Training and evaluation put the token that ends documents before each text. The tokenizer of a run does not add this
token itself. An exported tokenizer adds the token by a template, so that other programs give the model the same input
as in training.
"""

from __future__ import annotations

import json
import re
from typing import Any

from plinth.records import Blob
from plinth.storage.store import Store

#: A special token that pads, by its name: `<|pad|>`, `[PAD]`, `<|finetune_right_pad_id|>`.
_PAD = re.compile(r"(?<![a-z])pad(?![a-z])", re.IGNORECASE)


def pad_token(tokenizer: str, end: int) -> tuple[int, str] | None:
    """Return the id and name of the special token for padding, or None if there is none.

    The end-of-text token is never used for padding: a collator would mask it, and a tuned model would not learn to
    stop.
    """
    added = json.loads(tokenizer).get("added_tokens") or ()
    found = ((int(one["id"]), str(one["content"])) for one in added if one.get("special"))
    return next(((index, name) for index, name in sorted(found) if index != end and _PAD.search(name)), None)


def beginning_with(tokenizer: str, first: int, name: str) -> str:
    """Return a tokenizer file that adds one token before each text and no other token.

    A byte-level post-processor, which sets byte offsets, is kept.
    """
    described = json.loads(tokenizer)
    special, texts = {"SpecialToken": {"id": name, "type_id": 0}}, ("A", "B")
    single, second = ([special, {"Sequence": {"id": text, "type_id": at}}] for at, text in enumerate(texts))
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"SpecialToken": {"id": name, "type_id": 1}}, second[1]],
        "special_tokens": {name: {"id": name, "ids": [first], "tokens": [name]}},
    }
    kept = [one for one in _processors(described.get("post_processor")) if one["type"] == "ByteLevel"]
    described["post_processor"] = {"type": "Sequence", "processors": [*kept, template]} if kept else template
    return json.dumps(described, indent=2, ensure_ascii=False)


def same_tokenizer(store: Store, a: Blob, b: Blob) -> bool:
    """Return True if two tokenizers split text alike: their files may differ only in the tokens added around a text."""
    return a.sha256 == b.sha256 or _cutting(store.read_bytes(a)) == _cutting(store.read_bytes(b))


def _cutting(data: bytes) -> object:
    """Return a tokenizer's settings for splitting text. If the file is not a tokenizer, return its bytes."""
    try:
        return {name: value for name, value in json.loads(data).items() if name != "post_processor"}
    except (ValueError, AttributeError):
        return data


def _processors(described: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the post-processors of a tokenizer as a list."""
    if described is None:
        return []
    return list(described["processors"]) if described["type"] == "Sequence" else [described]
