"""The record that describes a probe made by code, and the check of what its code makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from plinth.errors import ExtensionError
from plinth.evaluation.probes.item import ProbeItem
from plinth.evaluation.probes.parameters import FAMILIES

#: Fields of an item that are texts.
TEXTS = ("item", "template", "prompt", "gold", "control", "examples")


@dataclass(frozen=True)
class Probe:
    """A probe whose items are made by code.

    Args:
        name: in `evaluation.probes.families` of a recipe.
        description: one sentence.
        family: what its items are reported under, one of `parameters.FAMILIES`.
        build: makes all items, the same ones on every machine: it reads no clock, no network, and nothing of the run.
        version: raised with any change of an item.
    """

    name: str
    description: str
    family: str
    build: Callable[[], Sequence[ProbeItem]]
    version: str = "1"


def items_of(probe: Probe) -> list[ProbeItem]:
    """The items of a probe, under its name and family.

    Raises:
        ExtensionError: its code fails, or makes what are no items.
    """
    try:
        made = list(probe.build())
    except Exception as error:
        raise _unusable(probe, f"{type(error).__name__}: {error}") from error
    fault = next(_faults(probe, made), None)
    if fault is not None:
        raise _unusable(probe, fault)
    return [one._replace(probe=probe.name, family=probe.family) for one in made]


def _faults(probe: Probe, made: Sequence[object]) -> Iterator[str]:
    if probe.family not in FAMILIES:
        yield f"the family {probe.family!r}"
    if not made:
        yield "no item"
    seen = set[str]()
    for number, one in enumerate(made):
        if not isinstance(one, ProbeItem):
            yield f"item {number} is a {type(one).__name__}"
            return
        fault = fault_of(one) or ("its name stands twice" if one.item in seen else "")
        if fault:
            yield f"item {number} ({one.item!r}): {fault}"
        seen.add(one.item)


def fault_of(one: ProbeItem) -> str:
    """What keeps an item from being scored; empty where nothing does."""
    texts = [getattr(one, field) for field in TEXTS]
    if not isinstance(one.wrong, tuple) or not all(isinstance(text, str) for text in (*texts, *one.wrong)):
        return f"{', '.join(TEXTS)} are texts, and `wrong` is a tuple of texts"
    try:
        "".join((*texts, *one.wrong)).encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair is no text"
    if not one.item or not one.prompt or not all(answer.strip() for answer in (one.gold, *one.wrong)):
        return "its name, its prompt or an answer is empty"
    if one.prompt != one.prompt.rstrip() or one.control != one.control.rstrip():
        return "white space at the end of a prompt belongs to the answers"
    if len({one.gold, *one.wrong}) != 1 + len(one.wrong):
        return "an answer stands twice"
    return "its control is empty, or its own prompt" if one.control in ("", one.prompt) else ""


def _unusable(probe: Probe, found: str) -> ExtensionError:
    return ExtensionError(
        f"the probe {probe.name!r} makes no items that can be scored",
        found=found,
        expected=f"a list of plinth.evaluation.probes.item.ProbeItem, of a family {', '.join(FAMILIES)}",
        remedy="repair or uninstall the package that has it; see docs/extending.md",
    )
