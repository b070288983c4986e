"""Languages: how far a model knows each of twenty-one, by its numbers, its words and the order of its words.

A template is a language with a task. Wrong answers are words of the same language, or the same words in another order,
so that only knowledge of the language helps.
"""

from __future__ import annotations

from plinth.evaluation.probes.base import Probe
from plinth.evaluation.probes.builtin import draws, facts
from plinth.evaluation.probes.builtin.facts import Cloze
from plinth.evaluation.probes.builtin.language_words import ENGLISH, LANGUAGES, Language
from plinth.evaluation.probes.item import ProbeItem

FAMILY = "languages"


def _numbers(language: Language) -> list[Cloze]:
    """Two numbers in a row, and the third; the control is another row."""
    numbers = language.numbers.split()
    facts_ = []
    for place in range(4):
        shown, gold = numbers[place : place + 2], numbers[place + 2]
        wrong = draws.some(f"{language.name}/{place}", [one for one in numbers if one not in (*shown, gold)], 3)
        prompt = f"Counting in {language.name}: {shown[0]}, {shown[1]},"
        facts_.append(Cloze(prompt, f" {gold}", tuple(f" {one}" for one in wrong)))
    return facts_


def _nouns(language: Language) -> list[Cloze]:
    """A noun in English, with its translation; the last two stand before the others as examples."""
    words = [word.replace("_", " ") for word in language.nouns.split()]
    return [
        Cloze(f"The English word {english} is in {language.name}", f" {word}")
        for english, word in zip(ENGLISH, words, strict=True)
    ]


def _sentences(language: Language) -> list[Cloze]:
    """The end of a sentence after its beginning; wrong ends have the same words in another order."""
    made, join = [], " " if language.spaced else ""
    sentences = [sentence.split(" ") for sentence in language.sentences.split("|")]
    for number, words in enumerate(sentences):
        other = sentences[(number + 1) % len(sentences)]
        for part in (3, 2):
            place = len(words) // part
            control, end = other[: len(other) // part], words[place:]
            orders = (draws.shuffled(f"{language.name}/{number}/{place}/{i}", end[:-1]) for i in range(9))
            wrong = [join.join([*order, end[-1]]) for order in orders if order != end[:-1]]
            different = list(dict.fromkeys(wrong))[: facts.WRONG]
            near = tuple(join + one for one in different)
            made.append(Cloze(join.join(words[:place]), join + join.join(end), near, join.join(control)))
    return made


def build() -> list[ProbeItem]:
    """All items, language by language."""
    made: list[ProbeItem] = []
    for code, language in LANGUAGES.items():
        made += facts.items(FAMILY, f"{code}/numbers", _numbers(language))
        if language.nouns:  # of English there is nothing to translate
            made += facts.with_examples(FAMILY, f"{code}/words", _nouns(language))
        made += facts.items(FAMILY, f"{code}/order", _sentences(language))
    return made


PROBE = Probe(FAMILY, "Numbers, words and the order of words in twenty-one languages.", FAMILY, build)
