"""Profiles and own rules to one list: profiles first, in their order, each reason once."""

from __future__ import annotations

from collections.abc import Sequence

from plinth.corpus.profiles.base import Profile
from plinth.corpus.profiles.registry import profile

#: A reason, and an expression or a column of spans.
Pairs = tuple[tuple[str, str], ...]


def resolved(names: Sequence[str], rules: Pairs, edits: Pairs) -> tuple[Pairs, Pairs]:
    """The rules and edits of a policy.

    A reason that an earlier profile has takes the family's name in front (`c4_lorem_ipsum`), and the project's
    behind that when it is still taken. An own rule with the reason of a profile's rule stands in its place: so a
    threshold is changed, and what is resolved already stays as it is.

    Raises:
        RecipeError: no such profile.
    """
    chosen = [profile(name) for name in dict.fromkeys(names)]
    return (
        _joined([(one, one.rules) for one in chosen], rules),
        _joined([(one, one.edits) for one in chosen], edits),
    )


def _joined(profiles: Sequence[tuple[Profile, Pairs]], own: Pairs) -> Pairs:
    found: dict[str, str] = {}
    for one, pairs in profiles:
        for reason, value in pairs:
            found[_free(reason, one, found)] = value
    replaced = dict(reversed(own))  # of several, which is an error that is said elsewhere, the first
    before = [(reason, replaced.get(reason, value)) for reason, value in found.items()]
    return (*before, *(pair for pair in own if pair[0] not in found))


def _free(reason: str, one: Profile, taken: dict[str, str]) -> str:
    names = (reason, f"{one.family}_{reason}", f"{one.family}_{one.project}_{reason}")
    return next(name for name in names if name not in taken)
