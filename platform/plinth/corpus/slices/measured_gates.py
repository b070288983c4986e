"""Gates that can be measured, each with its annotator and the generator of its labeled documents."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.corpus.annotate.base import annotator, available
from plinth.corpus.illegal import keyword
from plinth.corpus.lists import by_role, parsed
from plinth.corpus.policy.compiled_policy import DOCUMENTS, CompiledPolicy, columns_of
from plinth.corpus.policy.expressions import Expression, parse
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.slices import generate
from plinth.corpus.slices.generate import REPORTED, SLICES, Labelled, Term, good, invented
from plinth.corpus.slices.rates import GateSlices
from plinth.corpus.sources.parameters import Matching
from plinth.errors import RecipeError
from plinth.extensions import nearest
from plinth_text.arrays import Bools
from plinth_text.similarity import simhashes

# Labeled documents for the illegal-content gate: entries of its lists, and look-alikes.
#
# Nothing here is illegal. A phrase of the keyword lists is planted in good text; of a bank of generated documents those
# that the lists name by SHA-256 or SimHash stand for known texts, and are planted as they are and lightly edited
# (`lists` writes such lists). Content that the lists do not name cannot be planted, so nothing is measured of it.
#
# Good documents report a phrase, hold its words apart, or quote a sentence of a known text.

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
    """Return generated texts that stand for known illegal texts. The category of a text is its slice."""
    found = []
    for name in SLICES:
        for at in range(KNOWN):
            rng, pieces = random.Random(f"known {name} {at}"), list[str]()
            while sum(map(len, pieces)) < KNOWN_CHARACTERS:
                pieces.append(good(rng, name))
            found.append(Term("\n\n".join(pieces), 1.0, name))
    return tuple(found)


def plants(files: Mapping[str, Mapping[str, Path]]) -> tuple[Term, ...]:
    """Return the terms to insert into generated documents: phrases from the lists with their category, and the texts of
    `known` whose hash is listed, as `known_text` and `known_near`."""
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
    """Return list files to measure the gate with: invented phrases, and the hashes of all texts of `known`."""
    words = [term.text for term in invented(0)]
    phrases = [f"{first} {second}" for first, second in zip(words[::2], words[1::2], strict=True)]
    digests, near = _hashes()
    return {
        "keywords-invented.txt": "".join(f"{phrase}\tinvented\n" for phrase in phrases),
        "sha256-invented.txt": "".join(f"{one}\n" for one in digests),
        "simhash-invented.txt": "".join(f"{one}\n" for one in near),
    }


def illegal_documents(seed: int, count: int, terms: Sequence[Term]) -> list[Labelled]:
    """Return `count` good documents and `count` bad documents of every slice. The bad documents are of all kinds that
    `terms` allow, in turn."""
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
    """Replace `words` words of a text. If `words` is 0, replace one percent of the words."""
    pieces = text.split(" ")
    for at in rng.sample(range(len(pieces)), words or max(1, len(pieces) // 100)):
        pieces[at] = f"{rng.choice('abcdefgh')}{at}"
    return " ".join(pieces)


@lru_cache(maxsize=1)
def _hashes() -> tuple[list[str], list[str]]:
    """Return the hexadecimal SHA-256 and SimHash of each text of `known`, with shingles of the default length."""
    texts = [one.text for one in known()]
    hashes, _ = simhashes(pa.array(texts, pa.large_string()), Matching().shingle_words)
    return [hashlib.sha256(text.encode()).hexdigest() for text in texts], [f"{int(one):016x}" for one in hashes]


# Gates that can be measured: the annotator behind each, and how documents of known truth are made for it.
#
# A new gate is a generator and a line here; or a line alone, for a gate that only lists and reviewers label.

#: Function of a seed, the documents per label and slice, and the terms to insert.
Generate = Callable[[int, int, Sequence[Term]], list[Labelled]]
#: Function that returns terms to insert, from the files of the annotator's lists.
Plants = Callable[[Mapping[str, Mapping[str, Path]]], tuple[Term, ...]]


@dataclass(frozen=True)
class MeasuredGate:
    """Gate that can be measured, with the annotator of its rules and the generator of its labeled documents.

    If `plants_terms` is True, the annotator's lists are lexicons, and the generator inserts their terms. For lists in a
    different format, `plants` reads the terms.
    """

    name: str
    annotator: str
    generate: Generate | None = None
    plants_terms: bool = False
    plants: Plants | None = None


MEASURED_GATES = {
    gate.name: gate
    for gate in (
        MeasuredGate("quality", "quality_classifier", generate.quality),
        MeasuredGate("toxicity", "toxicity", generate.toxicity, plants_terms=True),
        MeasuredGate("pii", "pii"),
        MeasuredGate("domain", "domain"),
        MeasuredGate("illegal", "illegal", illegal_documents, plants=plants),
    )
}


def measured_gate(name: str) -> MeasuredGate:
    """Return a measurable gate by name.

    Raises:
        RecipeError: there is no gate with this name; the error suggests the nearest name.
    """
    if name not in MEASURED_GATES:
        remedy = nearest(name, MEASURED_GATES)
        raise RecipeError(f"corpus.slices: no gate {name!r}", expected=", ".join(MEASURED_GATES), remedy=remedy)
    return MEASURED_GATES[name]


@dataclass(frozen=True)
class GateRule:
    """Rules of a gate. The gate removes a document if any of its rules matches.

    Args:
        compiled: the rules.
        reasons: reasons of the rules, as in labels of reviewers, and the name of the gate.
        annotators: annotators whose columns the rules or other annotators read. An annotator comes after the
            annotators whose columns it reads.
    """

    compiled: CompiledPolicy
    reasons: tuple[str, ...]
    annotators: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Expressions of the gate's rules as text."""
        return tuple(rule.text for _, rule in self.compiled.rules)

    def removed(self, columns: Mapping[str, Any], rows: int) -> Bools:
        """Return a mask of the documents that the gate removes. The keys of `columns` are `annotator.column`."""
        found: Bools = np.any(self.compiled.fires(columns, rows), axis=0)
        return found


def rule_of(
    gate: MeasuredGate, params: GateSlices, policies: Mapping[str, Policy], annotators: Mapping[str, Any]
) -> GateRule:
    """Return the recipe's rules by which the gate removes documents.

    Args:
        annotators: parameters of all annotators of the recipe, by name.

    Raises:
        RecipeError: the gate's annotator or policy is not in the recipe, no rule reads the annotator's columns, or an
            expression cannot be parsed.
    """
    where = f"corpus.slices.{gate.name}"
    if gate.annotator not in annotators:
        remedy = f"add `{gate.annotator}` to `corpus.annotate`"
        raise RecipeError(f"{where}: the gate's annotator is not in the recipe", expected=gate.annotator, remedy=remedy)
    schema = columns_of(available(annotators))
    if params.removes is not None:
        return _joined(gate, [(gate.name, parse(params.removes, schema, f"{where}.removes"))])
    if params.policy not in policies:
        raise RecipeError(f"{where}: no policy {params.policy!r}", expected=", ".join(policies))
    parsed = [(rule.reason, parse(rule.drop, schema, where)) for rule in policies[params.policy].rules]
    own = [(reason, rule) for reason, rule in parsed if any(c.startswith(f"{gate.annotator}.") for c in rule.columns)]
    if not own:
        raise RecipeError(
            f"{where}: no rule of policy {params.policy} reads a column of {gate.annotator}",
            expected="a rule that drops documents by these columns",
            remedy="add such a rule, or set `removes` to an expression that is true for removed documents",
        )
    return _joined(gate, own)


def _joined(gate: MeasuredGate, rules: list[tuple[str, Expression]]) -> GateRule:
    read = {column.split(".")[0] for _, rule in rules for column in rule.columns} - {DOCUMENTS}
    reasons = dict.fromkeys([*(reason for reason, _ in rules), gate.name])
    for _, rule in rules:
        for column in rule.columns:
            if column.startswith(f"{DOCUMENTS}."):
                raise RecipeError(
                    f"corpus.slices.{gate.name}: the gate reads {column}, which no annotator writes",
                    expected="columns of annotators only, because labeled documents have no source",
                    remedy="set `removes` to an expression without this column",
                )
    for one in sorted(read):
        if annotator(one).asks is not None:
            raise RecipeError(
                f"corpus.slices.{gate.name}: the gate reads {one}, which does not run on labeled text",
                expected="columns of annotators that run in the pipeline",
                remedy="train a `student` on its labels, and use the student's columns",
            )
    read |= {other for one in read for other in annotator(one).sidecars}
    ordered = sorted(read, key=lambda one: (len(annotator(one).after), one))
    return GateRule(CompiledPolicy(tuple(rules)), tuple(reasons), tuple(ordered))
