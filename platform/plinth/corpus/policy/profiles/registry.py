"""All profiles by name. A new one is a constant in a file of this folder, and its comparison in tests/agreement."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from plinth.corpus.policy.expressions import syntax
from plinth.corpus.policy.profiles.base import Profile
from plinth.corpus.policy.profiles.c4 import ALL as C4
from plinth.corpus.policy.profiles.gopher import ALL as GOPHER
from plinth.corpus.policy.profiles.web import ALL as WEB
from plinth.errors import RecipeError
from plinth.extensions import nearest

PROFILES: dict[str, Profile] = {one.name: one for one in (*GOPHER, *C4, *WEB)}


def profile(name: str) -> Profile:
    """A profile by name.

    Raises:
        RecipeError: there is none; the nearest name is given.
    """
    if name not in PROFILES:
        remedy = nearest(name, PROFILES) or "profiles are named `family/project`"
        raise RecipeError(f"no profile {name!r}", expected=", ".join(PROFILES), remedy=remedy)
    return PROFILES[name]


#: A reason, and an expression or a column of spans.
Pairs = tuple[tuple[str, str], ...]


def resolved(names: Sequence[str], rules: Pairs, edits: Pairs) -> tuple[Pairs, Pairs]:
    """The rules and edits of a policy.

    A reason that is taken has the family's name in front (`c4_lorem_ipsum`), and the project's behind that when it
    is still taken. An own rule with the reason of a profile's rule stands in its place when it reads the same columns:
    so a threshold is changed, and what is resolved already stays as it is. When it reads other columns, as a rule from
    another recipe may, both stay, and the profile's takes the longer name.

    Raises:
        RecipeError: no such profile.
    """
    chosen = [profile(name) for name in dict.fromkeys(names)]
    return (
        _joined([(one, one.rules) for one in chosen], rules),
        _joined([(one, one.edits) for one in chosen], edits),
    )


def _joined(profiles: Sequence[tuple[Profile, Pairs]], own: Pairs) -> Pairs:
    given = dict(reversed(own))  # of several with one reason, an error that `compile_policy` reports, the first
    found: dict[str, str] = {}
    for one, pairs in profiles:
        for reason, value in pairs:
            name = _name(reason, value, one, found, given)
            found[name] = given.get(name, value)
    return (*found.items(), *(pair for pair in own if pair[0] not in found))


def _name(reason: str, value: str, one: Profile, found: Mapping[str, str], given: Mapping[str, str]) -> str:
    """The shortest name that no earlier rule has, and no own rule about something else."""
    names = (reason, f"{one.family}_{reason}", f"{one.family}_{one.project}_{reason}")
    free = (name for name in names if name not in found)
    return next((name for name in free if name not in given or _columns(given[name]) == _columns(value)), names[-1])


def _columns(expression: str) -> frozenset[str]:
    """Columns that an expression names; the text itself where it cannot be read, an error that `parse` reports."""
    try:
        tree = syntax(expression)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset({expression})
    return frozenset(ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
