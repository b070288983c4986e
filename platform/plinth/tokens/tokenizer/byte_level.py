"""Encode byte-level BPE with gigatoken: the tokens of the tokenizers library, at some forty times its speed.

This is the only module that knows gigatoken. The library knows a fixed set of word patterns (GPT-2, Llama 3, Qwen,
GPT-4o, …). Our pipelines that split numbers off first are none of them, so every number is given to it as an added
token, which it finds before it looks for words; what is left is GPT-2's pattern.

    texts    text 1, separator, text 2, separator, …      one buffer, encoded by one call
    tokens   tokens of text 1, `end`, tokens of text 2, `end`, …

`refusal` names the reason if a tokenizer has another form. The stages compare a sample of each part with the
tokenizers library (`comparison`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, pre_tokenizers

from plinth import fingerprint
from plinth.errors import IntegrityError
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.pipeline import isolated, pipeline, splitter_of, state
from plinth.tokens.tokenizer.reference import Encoded, Reference, joined, pieces, slices
from plinth_text.unicode import utf8

LIBRARY = "gigatoken"

#: Ends each text in the buffer. Unicode reserves both characters for such uses; a text that holds them all the same is
#: found by halving the column, and the tokenizers library encodes it.
SEPARATOR = "\U0010fffe\U0010ffff"

#: A longer text is encoded in pieces, as the reference does. The time for one word of 100 MB is half a minute.
MOST_BYTES = 2**19

_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_ADDED = {"special": False, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

U32 = npt.NDArray[np.uint32]


class UnsupportedFormError(ValueError):
    """The tokenizer has a form that gigatoken does not know, or whose tokens could differ."""


class ByteLevel:
    """Encoder of byte-level BPE tokenizers.

    Args:
        tokenizer: tokenizer that does not read special tokens from text (`encode.load`).
        end: token after each text, which no text contains.

    Raises:
        UnsupportedFormError: the tokenizer has another form; the message is the reason.
    """

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        spec = json.loads(tokenizer.to_str())
        digits = _digits(tokenizer)
        reason = refusal(spec, digits) if tokenizer.encode_special_tokens else "special tokens are read from text"
        if reason:
            raise UnsupportedFormError(reason)
        self.name = f"{LIBRARY} {fingerprint.libraries(LIBRARY)[LIBRARY]}"
        self._end, self._reference = end, Reference(tokenizer, end)
        first = max(end, *spec["model"]["vocab"].values(), *(one["id"] for one in spec["added_tokens"])) + 1
        self._numbers = Numbers(tokenizer, _number_texts(digits), first, grouped=digits == "triples")
        added = [one for one in spec["added_tokens"] if not one["special"]]
        added += [_ADDED | {"id": i, "content": text} for text, i in (*self._numbers.ids.items(), (SEPARATOR, end))]
        pattern = _GPT2 if digits else spec["pre_tokenizer"]
        try:
            self._library = load_hf_json(json.dumps(spec | {"added_tokens": added, "pre_tokenizer": pattern}))
        except RuntimeError as error:
            raise UnsupportedFormError(str(error).splitlines()[0]) from error

    def encode(self, texts: pa.Array, dtype: str) -> Encoded:
        """Return the token ids of all texts, each followed by `end`, and the start of each text in them, [texts + 1].

        Raises:
            IntegrityError: a text is not UTF-8.
        """
        texts = _checked(texts)
        if (pc.max(pc.binary_length(texts)).as_py() or 0) <= MOST_BYTES:
            return self._encode(texts, dtype)
        cut = [pieces(text) for text in texts.to_pylist()]
        column = pa.array([one for text in cut for one in text], pa.large_string())
        ids, first = joined((self._encode(one, dtype) for one in slices(column)), dtype)
        last = np.cumsum([0, *map(len, cut)])
        inner = np.delete(first[1:], last[1:] - 1) - 1  # `end` after a piece that is not the last of its text
        return np.delete(ids, inner), first[last] - np.searchsorted(inner, first[last])

    def _encode(self, texts: pa.Array, dtype: str) -> Encoded:
        nothing, separator = pa.scalar("", pa.large_string()), pa.scalar(SEPARATOR, pa.large_string())
        data, offsets = utf8(pc.binary_join_element_wise(texts, nothing, separator))
        ids = self._numbers.spelled(self._library.encode(data[offsets[0] : offsets[-1]].tobytes()))
        ends = np.flatnonzero(ids == self._end)
        if ends.size == len(texts):
            return ids.astype(dtype), np.concatenate([np.zeros(1, np.int64), ends + 1])
        if len(texts) == 1:
            return self._reference.encode(texts, dtype)
        middle = len(texts) // 2
        return joined((self._encode(half, dtype) for half in (texts[:middle], texts[middle:])), dtype)


def refusal(spec: Mapping[str, Any], digits: str) -> str:
    """Return the reason why gigatoken must not encode for a tokenizer; empty if there is none.

    gigatoken ignores settings that it does not know, so everything that decides tokens is checked here.

    Args:
        spec: the tokenizer's JSON.
        digits: result of `_digits`.
    """
    model, normalizer = spec["model"], spec["normalizer"]
    if model["type"] != "BPE" or model["byte_fallback"]:
        return f"model {model['type']}" + (" over characters" if model.get("byte_fallback") else "")
    named = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    if odd := [name for name in named if model[name]] + [name for name in ("truncation", "padding") if spec[name]]:
        return f"{odd[0]} is set"
    if not model["vocab"].keys() >= set(pre_tokenizers.ByteLevel.alphabet()):
        return "a byte has no token"
    if normalizer is not None:  # NFC is known to gigatoken, but of a later Unicode
        return f"normalizer {normalizer['type']}"
    added = [one for one in spec["added_tokens"] if not one["special"]]
    if added and (digits or any(one["single_word"] for one in added)):
        return "added tokens that are not special"
    return "" if digits or _is_known(spec["pre_tokenizer"]) else "words are split by another pattern"


def _is_known(splitter: Any) -> bool:
    """Return True for GPT-2's pattern, and for regular expressions before byte-level encoding. gigatoken itself refuses
    expressions that it does not know."""
    if splitter is None or splitter["type"] != "Sequence":
        return splitter is not None and splitter["type"] == "ByteLevel" and splitter == _GPT2 | _trim(splitter)
    *splits, last = splitter["pretokenizers"]
    return (
        last["type"] == "ByteLevel"
        and last == _GPT2 | _trim(last) | {"use_regex": False}
        and bool(splits)
        and all(
            one["type"] == "Split" and one["behavior"] == "Isolated" and not one["invert"] and "Regex" in one["pattern"]
            for one in splits
        )
    )


def _trim(splitter: Mapping[str, Any]) -> dict[str, Any]:
    return {"trim_offsets": splitter["trim_offsets"]}  # decides offsets, which are not used


def _digits(tokenizer: Tokenizer) -> str:
    """Return how a pipeline of ours splits numbers off before GPT-2's pattern; empty for other pre-tokenizers."""
    found = state(tokenizer.pre_tokenizer)
    for digits in ("single", "triples"):
        if found == state(pipeline(TokenizerParameters(digits=digits)).pre_tokenizer):
            return digits
    return ""


@lru_cache(maxsize=4)
def _number_texts(digits: str) -> tuple[str, ...]:
    """Return the texts that are matched before words: digits, or groups of up to three, then the other numbers."""
    if not digits:
        return ()
    splitter = pre_tokenizers.Digits(individual_digits=False) if digits == "single" else splitter_of(r"\p{N}+")
    numbers = map(chr, np.flatnonzero(isolated(splitter)).tolist())
    sizes = (1,) if digits == "single" else (1, 2, 3)
    return (*(f"{i:0{n}d}" for n in sizes for i in range(10**n)), *(one for one in numbers if not one.isascii()))


class Numbers:
    """Tokens of the numbers that gigatoken returns as one added token each.

    Args:
        texts: numbers; those in ASCII first.
        first: first id that is free for numbers of several tokens.
        grouped: True if adjacent numbers form groups. The library groups those that are not all ASCII.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str], first: int, grouped: bool) -> None:
        self._tokenizer, self._first = tokenizer, first
        spelled = self._by_library(texts)
        ascii_only = [text.isascii() for text in texts]
        kept = [len(ids) == 1 and (plain or not grouped) for ids, plain in zip(spelled, ascii_only, strict=True)]
        self.ids = {
            text: int(ids[0]) if one else first + i
            for i, (text, ids, one) in enumerate(zip(texts, spelled, kept, strict=True))
        }
        self._texts = {i: text for text, i in self.ids.items()}
        self._lengths = np.array([len(ids) for ids in spelled], np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._tokens = np.concatenate([np.empty(0, np.uint32), *spelled])
        self._grouped_from = first + sum(ascii_only) if grouped else np.iinfo(np.int64).max

    def spelled(self, ids: U32) -> U32:
        """Return the ids with each number as its own tokens."""
        if not (ids.size and ids.max() >= self._first):
            return ids
        ids = self._regrouped(ids)
        numbers = np.flatnonzero(ids >= self._first)
        which = ids[numbers].astype(np.int64) - self._first
        lengths = self._lengths[which]
        moved = np.cumsum(lengths - 1) - (lengths - 1)  # how far the tokens before a number move it
        of = np.repeat(np.arange(which.size), lengths)
        within = np.arange(of.size) - (np.cumsum(lengths) - lengths)[of]
        places = (numbers + moved)[of] + within
        made = np.empty(ids.size + int((lengths - 1).sum()), np.uint32)
        kept = np.ones(made.size, np.bool_)
        kept[places[within > 0]] = False
        made[kept] = ids
        made[places] = self._tokens[self._starts[which][of] + within]
        return made

    def _regrouped(self, ids: U32) -> U32:
        """Replace runs of numbers that are not all ASCII by the tokens of the library."""
        runs, at = list[tuple[int, int]](), 0
        for place in np.flatnonzero(ids >= self._grouped_from).tolist():
            if place < at:
                continue
            start, at = place, place + 1
            while start and int(ids[start - 1]) in self._texts:
                start -= 1
            while int(ids[at]) in self._texts:  # the last id is `end`
                at += 1
            runs.append((start, at))
        if not runs:
            return ids
        texts = ["".join(self._texts[i] for i in ids[a:b].tolist()) for a, b in runs]
        known = dict.fromkeys(texts)
        tokens = dict(zip(known, self._by_library(list(known)), strict=True))
        kept, at = list[U32](), 0
        for (start, stop), text in zip(runs, texts, strict=True):
            kept += [ids[at:start], tokens[text]]
            at = stop
        return np.concatenate([*kept, ids[at:]])

    def _by_library(self, texts: Sequence[str]) -> list[U32]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.uint32) for one in encodings]


def _checked(texts: pa.Array) -> pa.Array:
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.large_string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise IntegrityError("a text is not valid UTF-8", found=error, expected="UTF-8") from error
    return texts.fill_null("") if texts.null_count else texts
