"""All lines of all checklists: tables of this library, of the packages above it, and of plug-ins.

A table is a module's `CHECKS`, one row a line, in the order in which to mend them. Modules are named by their text: the
registry and the jobs stand above this package, and `plinth --help` imports none of them. Another package adds a line by
an entry point of the group `plinth.checks` that names a `Check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Final

from plinth.errors import PlinthError, RequestError
from plinth.extensions import Catalogue, nearest
from plinth.operation.checklists.check import CHECKLISTS, Check, CheckAnswer, ChecklistName, undetermined
from plinth.operation.checklists.scope import CheckScope

_HERE = "plinth.operation.checklists"

TABLES: Final = (
    f"{_HERE}.trust_checks",
    f"{_HERE}.secret_checks",
    f"{_HERE}.code_checks",
    f"{_HERE}.place_checks",
    f"{_HERE}.corpus_checks",
    f"{_HERE}.run_checks",
    f"{_HERE}.money_checks",
    "plinth_registry.checks.log_checks",
    "plinth_registry.checks.release_checks",
    "plinth_registry.checks.server_checks",
    "plinth_jobs.checks",
)

#: Lines of other packages.
OTHERS: Final = Catalogue("plinth.checks", "check", Check, {})


def checks(name: ChecklistName | None = None) -> tuple[Check, ...]:
    """The lines of a checklist, or all."""
    return tuple(check for check in _all() if name is None or name in check.lists)


def find(name: str) -> Check:
    """A line by name.

    Raises:
        RequestError: there is none.
    """
    known = {check.name: check for check in _all()}
    if name not in known:
        raise RequestError(
            f"no checklist has a line {name!r}",
            remedy=nearest(name, known) or f"`plinth ops check list` has them, of {', '.join(CHECKLISTS)}",
        )
    return known[name]


def _all() -> Iterator[Check]:
    for table in TABLES:
        yield from import_module(table).CHECKS
    for name in OTHERS:
        try:
            yield OTHERS[name]
        except PlinthError as error:
            yield _unusable(name, error.brief)


def _unusable(name: str, why: str) -> Check:
    """A line for a plug-in whose own cannot be used: it must not vanish from every checklist."""

    def examine(scope: CheckScope) -> CheckAnswer:
        return undetermined(why)

    return Check(name, f"the plug-in's line {name} can be used", "platform", CHECKLISTS, "repair the package", examine)
