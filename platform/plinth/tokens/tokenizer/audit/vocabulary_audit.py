"""Properties of a vocabulary: unreachable and unused tokens, digits, white space.

Tokens that training hardly sees keep their random embeddings, and a prompt with one can make a model generate anything.
The categories are those of Land and Bartolo 2024, "Fishing for Magikarp" (arXiv:2405.05417): unreachable, unused, and
tokens of one document only.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth.tokens.tokenizer import encode
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.vocabulary import byte_ids, encode_bytes, token_bytes

#: Examples of tokens of a kind.
NAMED = 20

#: A token used this often, but in one document only, belongs to that document and not to the language.
OWN_COUNT = 10

#: Digits a token may hold.
DIGITS_ALLOWED = {"single": 1, "triples": 3}

INDENTS = (2, 4, 8, 16)

#: Kinds of dead tokens, in words for people.
DEAD_TOKENS = {
    "unreachable": "never written by their own text",
    "unused": "not used in the sample",
    "one_document": "used by one document only",
}


def vocabulary_facts(tokenizer: Tokenizer, counts: NDArray[np.int64], documents: NDArray[np.int64]) -> dict[str, Any]:
    """A vocabulary and how often a sample used it.

    Args:
        counts: [vocabulary] occurrences of each token.
        documents: [vocabulary] documents that hold it.

    Returns:
        Sizes; numbers, shares and examples of unreachable, unused and one-document tokens; `digits`
        (longest run in a token); `whitespace` (longest run of spaces, tokens of an indent, a tab, a line end);
        `arbitrary_bytes` (strings encoded, and how many did not round-trip).
    """
    table = token_bytes(tokenizer)
    ordinary = np.array([bool(data) for data in table])
    lost = unreachable(tokenizer, table)
    unused = np.flatnonzero(ordinary & (counts == 0)).tolist()
    own = np.flatnonzero(ordinary & (counts >= OWN_COUNT) & (documents == 1)).tolist()
    total = int(ordinary.sum())
    return {
        "vocab_size": len(table),
        "byte_tokens": len({data for data in table if len(data) == 1}),
        **_named("unreachable", lost, table, total),
        **_named("unused", unused, table, total),
        **_named("one_document", sorted(own, key=lambda i: -int(counts[i])), table, total),
        "digits": {"longest": max((_digits(data) for data in table), default=0)},
        "whitespace": _whitespace(tokenizer, table),
        "arbitrary_bytes": _arbitrary_bytes(tokenizer, table),
    }


def failures(params: TokenizerParameters, found: dict[str, Any]) -> list[str]:
    """A line for every property of the vocabulary that breaks a bound of the recipe."""
    lines = []
    if found["byte_tokens"] != 256:
        lines.append(f"{found['byte_tokens']} of 256 bytes are in the vocabulary: some text cannot be encoded")
    if found["unreachable_share"] > params.max_unreachable_share:
        examples = ", ".join(found["unreachable_examples"][:5])
        lines.append(
            f"{found['unreachable_tokens']} tokens are never written by their own text, such as {examples}; "
            f"at most {params.max_unreachable_share:.1%} allowed"
        )
    allowed, longest = DIGITS_ALLOWED.get(params.digits), found["digits"]["longest"]
    if allowed is not None and longest > allowed:
        lines.append(f"a token holds {longest} digits in a row, at most {allowed} with `digits: {params.digits}`")
    if found["arbitrary_bytes"]["failed"]:
        lines.append("{failed} of {strings} strings of arbitrary bytes did not round-trip".format_map(_bytes_of(found)))
    return lines


def unreachable(tokenizer: Tokenizer, table: Sequence[bytes]) -> list[int]:
    """Tokens whose own text is written with other tokens. Pieces of characters have no text and are left out."""
    fallback = set(byte_ids(tokenizer))
    texts = {i: text for i, data in enumerate(table) if i not in fallback and (text := _text(data))}
    with encode.parallel(True):
        encoded = encode.encode_texts(tokenizer, texts.values(), "<u4")
        return [index for index, ids in zip(texts, encoded, strict=True) if ids.tolist() != [index]]


def _named(kind: str, ids: list[int], table: Sequence[bytes], total: int) -> dict[str, Any]:
    examples = [f"{i} {table[i].decode(errors='backslashreplace')!r}" for i in ids[:NAMED]]
    return {f"{kind}_tokens": len(ids), f"{kind}_share": len(ids) / max(1, total), f"{kind}_examples": examples}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def _digits(data: bytes) -> int:
    longest = run = 0
    for character in _text(data):
        run = run + 1 if unicodedata.category(character)[0] == "N" else 0
        longest = max(longest, run)
    return longest


def _whitespace(tokenizer: Tokenizer, table: Sequence[bytes]) -> dict[str, Any]:
    blanks = [data for data in table if data and not data.strip(b" ")]
    texts = {f"indent_{n}": "\n" + " " * n + "x" for n in INDENTS} | {"tab": "\tx", "line_end": "x\r\n"}
    counted = encode.encode_texts(tokenizer, texts.values(), "<u4")
    words = [data for data in table if data.strip(b" ").isalpha()]
    return {
        "longest_run": max(map(len, blanks), default=0),
        "tokens": {name: len(ids) for name, ids in zip(texts, counted, strict=True)},
        "words_with_space": sum(data.startswith(b" ") for data in words) / max(1, len(words)),
    }


def _arbitrary_bytes(tokenizer: Tokenizer, table: Sequence[bytes]) -> dict[str, int]:
    chooser = random.Random(0)
    strings = [bytes(range(256)), *(chooser.randbytes(chooser.randrange(1, 200)) for _ in range(200))]
    strings += ["añ東👩‍👧".encode()[i:j] for i in range(10) for j in range(i + 1, 20)]
    failed = sum(b"".join(table[token] for token in encode_bytes(tokenizer, data)) != data for data in strings)
    return {"strings": len(strings), "failed": failed}


def _bytes_of(found: dict[str, Any]) -> dict[str, int]:
    counted: dict[str, int] = found["arbitrary_bytes"]
    return counted
