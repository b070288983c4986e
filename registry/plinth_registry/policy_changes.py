"""Differences between two gate policies, key by key: what became weaker, stronger, or only different.

Weaker lets a candidate pass that did not pass before. The owner sees the list before a version is signed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from plinth.records import Frozen
from plinth_registry.gates.settings import GatePolicy

Direction = Literal["weaker", "stronger", "changed"]

#: Keys that say nothing about what passes.
_APART: Final = ("release", "version", "description", "without", "extensions")
#: Bounds that let more pass when they rise; a minimum n skips more samples.
_WEAKER_UP: Final = re.compile(
    r"(^|\.)(max_\w+|margin|margins\..+|min_(documents|windows|templates|items)|silence_s|"
    r"\w+_(s|rise|bound)|cost_per_million_tokens)$"
)
#: Bounds that let fewer pass when they rise: what must be reached, and shares that must be good.
_STRONGER_UP: Final = re.compile(
    r"(^|\.)(min_p\..+|min_steps|people|two_person|clean_commit|objectives\.\w+)$"
)
#: Neither: another window, another level of a trial, other streams and feeds.
_NEUTRAL: Final = re.compile(r"^(.*\.window_days|trial\.(level|least|promote|higher_is_better|feeds.*))$")
#: Choices, the weakest first.
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "first_release": ("allowed", "refused"),
    "tainted_champion": ("stays", "goes back"),
    "papers": ("unsigned", "signed"),
    "probes.none_decides": ("passes", "fails"),
}
#: Lists in which more entries let more pass, and those in which more entries ask for more.
_MORE_IS_WEAKER: Final = ("approvals.accepted", "approvals.proxies", "resume.classes", "licences.permitted")
_MORE_IS_STRONGER: Final = ("licences.uses", "cost.amounts", "error_budget.indicators", "error_budget.required")
#: Empty means everyone; a list restricts, and more entries restrict less.
_EMPTY_IS_ALL: Final = "approvals.approvers"


class PolicyChange(NamedTuple):
    """One key that differs, with its values in words."""

    key: str
    before: str
    after: str
    direction: Direction


def changes(before: GatePolicy, after: GatePolicy) -> tuple[PolicyChange, ...]:
    """Return every key that differs, weaker ones first."""
    found = [*_gates(before, after), *_extensions(before, after), *_settings(before, after)]
    order: tuple[Direction, ...] = ("weaker", "stronger", "changed")
    return tuple(sorted(found, key=lambda one: (order.index(one.direction), one.key)))


def direction(key: str, before: Any, after: Any) -> Direction:
    """Say which way a setting moved. None is no bound, or no list."""
    if _NEUTRAL.match(key):
        return "changed"
    if key in _CHOICES:
        return _either(_CHOICES[key].index(after) < _CHOICES[key].index(before))
    if before is None or after is None:
        return _either(after is None)
    if key == _EMPTY_IS_ALL:
        return _either(not after) if not (before and after) else _of_lists(set(before), set(after), more_is_weaker=True)
    if key in (*_MORE_IS_WEAKER, *_MORE_IS_STRONGER):
        return _of_lists(set(before), set(after), more_is_weaker=key in _MORE_IS_WEAKER)
    if _WEAKER_UP.search(key):
        return _either(after > before)
    return _either(after < before) if _STRONGER_UP.search(key) else "changed"


def settings(policy: Frozen, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting of a policy with its dotted key, defaults included."""
    for name in type(policy).model_fields:
        if not prefix and name in _APART:
            continue
        value, key = getattr(policy, name), f"{prefix}{name}"
        if isinstance(value, Frozen):
            yield from settings(value, f"{key}.")
        elif isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", one) for inner, one in value.items())
        else:
            yield key, value


def _settings(before: GatePolicy, after: GatePolicy) -> Iterator[PolicyChange]:
    old, new = dict(settings(before)), dict(settings(after))
    for key in sorted(old.keys() | new.keys()):
        was, now = _value(old, key), _value(new, key)
        if was != now:
            yield PolicyChange(key, _words(was), _words(now), direction(key, was, now))


def _value(known: Mapping[str, Any], key: str) -> Any:
    """A setting; a slice without a margin of its own has the common one."""
    head, own, _ = key.partition(".margins.")
    return known.get(key, known[f"{head}.margin"] if own else None)


def _gates(before: GatePolicy, after: GatePolicy) -> Iterator[PolicyChange]:
    """Gates that the policy stopped or started to require."""
    for name in before.without.keys() | after.without.keys():
        old, new = before.without.get(name), after.without.get(name)
        if (old is None) != (new is None):
            was, now = (f"not required: {one}" if one else "required" for one in (old, new))
            yield PolicyChange(f"gate {name}", was, now, _either(old is None))


def _extensions(before: GatePolicy, after: GatePolicy) -> Iterator[PolicyChange]:
    for name in before.extensions.keys() | after.extensions.keys():
        old, new = before.extensions.get(name), after.extensions.get(name)
        if old != new:
            known: Direction = "changed" if old is not None and new is not None else _either(new is None)
            yield PolicyChange(f"extension {name}", _words(old), _words(new), known)


def _of_lists(before: set[Any], after: set[Any], *, more_is_weaker: bool) -> Direction:
    if not (before < after or after < before):
        return "changed"
    return _either((before < after) == more_is_weaker)


def _either(weaker: bool) -> Direction:
    return "weaker" if weaker else "stronger"


def _words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return str(dict(value)) if isinstance(value, Mapping) else str(value)
