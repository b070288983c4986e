"""The built-in probes: their bytes are fixed, their form is right, and their facts agree with independent sources."""

import ast
import re
from collections import Counter
from functools import cache

import pytest

from plinth.evaluation.parameters import FAMILIES, Family
from plinth.evaluation.probes import base, maths
from plinth.evaluation.probes.base import PROBES, VERSION, ProbeItem, to_table
from plinth.evaluation.probes.languages import LANGUAGES
from plinth.fingerprint import digest

#: Digest of all items; a change of any is a new `base.VERSION` and a new line here.
DIGESTS = {"1": "a77e7184f0e3f5f1115b517921d2a91a053a03e72afea25952b9a5a66ef9359b"}



@cache
def items_of(family: Family) -> list[ProbeItem]:
    return list(PROBES[family].build())


def every() -> list[ProbeItem]:
    return [one for family in FAMILIES for one in items_of(family)]


def test_six_families_in_less_than_two_megabytes() -> None:
    assert PROBES.built_in == FAMILIES
    texts = (text for one in every() for text in (one.examples, one.prompt, one.gold, *one.wrong, one.control))
    assert sum(len(text.encode()) for text in texts) < 2_000_000
    assert min(len(items_of(family)) for family in FAMILIES) >= 80
    assert min(len({one.template for one in items}) for items in map(items_of, FAMILIES)) >= 10


def test_items_are_those_of_their_version() -> None:
    assert digest([one._asdict() for one in every()]) == DIGESTS[VERSION]


@pytest.mark.parametrize("family", FAMILIES)
def test_form_of_items(family: Family) -> None:
    items = items_of(family)
    assert len({one.item for one in items}) == len(items)
    assert {one.family for one in items} == {family}
    for one in items:
        assert one.prompt == one.prompt.rstrip() != ""
        assert one.control not in ("", one.prompt)
        assert one.control == one.control.rstrip()
        assert len({one.gold, *one.wrong}) == 1 + len(one.wrong)
        assert not one.examples or one.examples.endswith("\n")
    assert max(Counter(one.examples + one.prompt for one in items).values()) == 1


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "long_context"])
def test_a_control_is_no_other_items_whole_question(family: Family) -> None:
    """A control has the form of its template, and its own right answer is not the item's."""
    right = {one.prompt: one.gold for one in items_of(family)}
    assert all(right.get(one.control) != one.gold for one in items_of(family))


def test_choices_do_not_follow_from_length_alone() -> None:
    """A rule that always takes the shortest answer, or the longest, is about as good as chance."""
    for family in ("knowledge", "code", "maths", "languages", "safety"):
        items = [one for one in items_of(family) if one.wrong]
        for rule in (min, max):
            won = 0.0
            for one in items:
                answers = [one.gold, *one.wrong]
                best = rule(len(answer.encode()) for answer in answers)
                tied = [answer for answer in answers if len(answer.encode()) == best]
                won += (one.gold in tied) / len(tied)
            chance = sum(one.chance for one in items) / len(items)
            assert abs(won / len(items) - chance) < 0.15, (family, rule)


def test_sums_are_right() -> None:
    operations = {"add": "+", "add_digits": "+", "add_hundreds": "+", "multiply": "*", "multiply_tens": "*"}
    for one in items_of("maths"):
        if one.template in operations:
            a, b = map(int, re.findall(r"\d+", one.prompt))
            assert int(one.gold) == (a + b if operations[one.template] == "+" else a * b)
        if one.template == "count":
            assert int(one.gold) == one.prompt.split("row ")[1].split(",")[0].count("a")
        if one.template == "largest":
            assert int(one.gold) == max(map(int, re.findall(r"\d+", one.prompt)))


def test_numbers_in_words_agree_with_another_project() -> None:
    from word2number import w2n

    assert [w2n.word_to_num(maths.in_words(number)) for number in range(1, 100)] == list(range(1, 100))


def test_values_in_code_are_what_python_says() -> None:
    for one in items_of("code"):
        if one.template == "values":
            assert repr(eval(one.prompt.removeprefix(">>> "))) == one.gold.strip()
        if one.template == "bodies":
            ast.parse(one.prompt + one.gold)
        if one.template in ("trace", "look_up"):
            scope: dict[str, object] = {}
            *statements, last = (line.removeprefix(">>> ") for line in one.prompt.splitlines())
            exec("\n".join(statements), scope)
            assert str(eval(last, scope)) == one.gold.strip()


def test_exceptions_in_code_are_those_that_python_raises() -> None:
    for one in items_of("code"):
        if one.template == "exceptions":
            wanted = getattr(__builtins__, one.gold.strip(" :\n"), None) or __builtins__[one.gold.strip(" :\n")]
            with pytest.raises(wanted):
                exec(one.prompt.removeprefix("try:\n    ").removesuffix("\nexcept"), {})


def test_brackets_close() -> None:
    for one in items_of("code"):
        if one.template == "brackets":
            program = one.prompt.split(" = ")[1] + one.gold
            pairs = {")": "(", "]": "[", "}": "{"}
            opened: list[str] = []
            for sign in program:
                if sign in "([{":
                    opened.append(sign)
                elif sign in pairs:
                    assert opened.pop() == pairs[sign]
            assert opened == []


def test_what_a_long_prompt_asks_for_stands_in_it_and_not_in_its_control() -> None:
    for one in items_of("long_context"):
        task, distance = one.template.split("/")
        assert len(one.prompt) > int(distance) * 0.8
        if task == "copy":
            assert one.gold in one.prompt
            assert one.gold not in one.control
        elif task == "repeat":
            assert one.gold in one.prompt.split("\n")[0]
            assert one.gold not in one.control.split("\n")[0]
        else:
            asked = one.prompt.rstrip(":").rpartition("that " if task == "recall" else "\n")[2]
            assert f"{asked}{':' if task == 'look_up' else ''}{one.gold}" in one.prompt
            assert f"{asked}{':' if task == 'look_up' else ''}{one.gold}" not in one.control
            assert all(answer.strip(" .") in one.prompt for answer in one.wrong)


def test_languages_have_the_names_that_cldr_gives_them() -> None:
    babel = pytest.importorskip("babel", reason="babel is not installed")
    for code, language in LANGUAGES.items():
        assert babel.Locale(code).english_name == language.name


def test_safety_pairs_are_each_others_controls() -> None:
    harmful, harmless = items_of("safety")[::2], items_of("safety")[1::2]
    for one, other in zip(harmful, harmless, strict=True):
        assert (one.prompt, one.control) == (other.control, other.prompt)
        assert (one.gold, one.wrong) == (other.wrong[0], (other.gold,))


def test_draws_are_fixed() -> None:
    assert base.number("a", 0, 99) == 50
    assert sorted(base.shuffled("a", range(9))) == list(range(9))
    assert base.shuffled("a", "abcdef") != base.shuffled("b", "abcdef")
    assert to_table(every()).num_rows == len(every())
