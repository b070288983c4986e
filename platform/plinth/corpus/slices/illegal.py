"""Labelled documents for the illegal-content gate: entries of its lists, and look-alikes.

Nothing here is illegal. A phrase of the keyword lists is planted in good text; of a bank of generated documents those
that the lists name by SHA-256 or SimHash stand for known texts, and are planted as they are and lightly edited
(`lists` writes such lists). Content that the lists do not name cannot be planted, so nothing is measured of it.

Good documents report a phrase, hold its words apart, or quote a sentence of a known text.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from plinth.corpus.illegal.lists import keyword
from plinth.corpus.illegal.parameters import Matching
from plinth.corpus.lists.listfiles import by_role, parsed
from plinth.corpus.slices.generate import REPORTED, SLICES, Labelled, Term, good, invented
from plinth_text.similarity import simhashes

#: Documents of the bank in every slice, and how long they are.
KNOWN, KNOWN_CHARACTERS = 20, 4000
KNOWN_TEXT, KNOWN_NEAR = "known_text", "known_near"
ROLES = ("sha256", "simhash", "phash", "keywords", "domains")
OFFERS = (
    "We have {t} here, write to get {t}.",
    "{t} available now.",
    "All about {t}: new every week.",
)


@lru_cache(maxsize=1)
def known() -> tuple[Term, ...]:
    """The bank: texts that stand for known illegal ones, with the slice as their category."""
    found = []
    for name in SLICES:
        for at in range(KNOWN):
            rng, pieces = random.Random(f"known {name} {at}"), list[str]()
            while sum(map(len, pieces)) < KNOWN_CHARACTERS:
                pieces.append(good(rng, name))
            found.append(Term("\n\n".join(pieces), 1.0, name))
    return tuple(found)


def plants(files: Mapping[str, Mapping[str, Path]]) -> tuple[Term, ...]:
    """The entries of the lists: phrases by their category; texts of the bank as `known_text` and `known_near`."""
    found: list[Term] = []
    for key in sorted(files):
        roles = by_role(files[key], ROLES)
        for name, path in roles["keywords"]:
            found += [Term(term, 1.0, category) for term, category in parsed(name, path, keyword)]
        listed = {
            line
            for role in ("sha256", "simhash")
            for name, path in roles[role]
            for line in parsed(name, path, str.lower)
        }
        for one, digest, near in zip(known(), *_hashes(), strict=True):
            found += [Term(one.text, 1.0, KNOWN_TEXT)] if digest in listed else []
            found += [Term(one.text, 1.0, KNOWN_NEAR)] if near in listed else []
    return tuple(dict.fromkeys(found))


def lists() -> dict[str, str]:
    """Files of lists that name invented phrases and every text of the bank, to measure the gate with."""
    words = [term.text for term in invented(0)]
    phrases = [f"{first} {second}" for first, second in zip(words[::2], words[1::2], strict=True)]
    digests, near = _hashes()
    return {
        "keywords-invented.txt": "".join(f"{phrase}\tinvented\n" for phrase in phrases),
        "sha256-invented.txt": "".join(f"{one}\n" for one in digests),
        "simhash-invented.txt": "".join(f"{one}\n" for one in near),
    }


def generate(seed: int, count: int, terms: Sequence[Term]) -> list[Labelled]:
    """`count` good documents of every slice, and as many bad ones of every kind that `terms` allow in turn."""
    phrases = [term for term in terms if term.category not in (KNOWN_TEXT, KNOWN_NEAR)]
    texts = [term for term in terms if term.category == KNOWN_TEXT]
    near = [term for term in terms if term.category == KNOWN_NEAR]
    kinds: list[tuple[str, Callable[[random.Random, str], str]]] = []
    if phrases:
        kinds.append(("keyword", lambda rng, name: _planted(rng, good(rng, name), rng.choice(phrases), OFFERS)))
    if texts or near:
        kinds.append(("copy", lambda rng, name: rng.choice(texts or near).text))
    if near:
        kinds.append(("one_word", lambda rng, name: _edited(rng, rng.choice(near).text, 1)))
        kinds.append(("one_percent", lambda rng, name: _edited(rng, rng.choice(near).text, 0)))
    out = []
    for name in SLICES:
        for at in range(count):
            rng = random.Random(f"illegal {seed} {name} {at}")
            made_as = ("plain", "reported", "apart", "quoting")[at % 4]
            out.append(Labelled(_harmless(rng, name, made_as, phrases), False, name, made_as))
            if kinds:
                made_as, make = kinds[at % len(kinds)]
                out.append(Labelled(make(rng, name), True, name, made_as))
    return out


def _harmless(rng: random.Random, name: str, made_as: str, phrases: Sequence[Term]) -> str:
    text = good(rng, name)
    if made_as == "quoting":
        quoted = rng.choice(known()).text.split("\n")[0]
        return f"{text}\n\n{quoted}"
    if made_as == "plain" or not phrases:
        return text
    phrase = rng.choice(phrases)
    if made_as == "apart":
        words = phrase.text.split()
        return _planted(rng, text, Term(" of the ".join(reversed(words)), 1.0, ""), OFFERS) if len(words) > 1 else text
    return _planted(rng, text, phrase, REPORTED)


def _planted(rng: random.Random, text: str, term: Term, sentences: Sequence[str]) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    lines[at] = f"{lines[at]} {rng.choice(sentences).format(t=term.text)}".strip()
    return "\n".join(lines)


def _edited(rng: random.Random, text: str, words: int) -> str:
    """The text with some words replaced: so many, or one in a hundred."""
    pieces = text.split(" ")
    for at in rng.sample(range(len(pieces)), words or max(1, len(pieces) // 100)):
        pieces[at] = f"{rng.choice('abcdefgh')}{at}"
    return " ".join(pieces)


@lru_cache(maxsize=1)
def _hashes() -> tuple[list[str], list[str]]:
    """SHA-256 and SimHash of the bank, in hexadecimal digits, with shingles of the default length."""
    texts = [one.text for one in known()]
    hashes, _ = simhashes(pa.array(texts, pa.large_string()), Matching().shingle_words)
    return [hashlib.sha256(text.encode()).hexdigest() for text in texts], [f"{int(one):016x}" for one in hashes]
