"""One line of a checklist, and what evaluating it gives.

pass            the claim holds; the evidence says what was seen
warn            it holds, and will not for long, or holds by a default that nobody chose
fail            it does not hold
undetermined    it could not be seen: never a pass
not applicable  nothing here that the claim is about
waived          it does not hold, and the owner of the policy has signed that until a date
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from plinth.operation.checklists.scope import CheckScope
from plinth.records import Frozen

Outcome = Literal["pass", "warn", "fail", "undetermined", "not applicable", "waived"]
ChecklistName = Literal["preproduction", "readiness", "incident", "security"]
CHECKLISTS: Final[tuple[ChecklistName, ...]] = get_args(ChecklistName)

#: What each checklist answers.
PURPOSES: Final[dict[ChecklistName, str]] = {
    "preproduction": "May a long run of this recipe begin?",
    "readiness": "May this workspace be relied on, and called in the night for?",
    "incident": "What still holds, and what can be returned to?",
    "security": "Is what SECURITY.md rests on in place here?",
}


class CheckAnswer(NamedTuple):
    """What a line's function saw. `evidence` names it: a path, a number, a person."""

    outcome: Outcome
    evidence: str


def passed(evidence: str) -> CheckAnswer:
    """The claim holds."""
    return CheckAnswer("pass", evidence)


def warned(evidence: str) -> CheckAnswer:
    """It holds, and will not for long, or by a default."""
    return CheckAnswer("warn", evidence)


def failed(evidence: str) -> CheckAnswer:
    """It does not hold."""
    return CheckAnswer("fail", evidence)


def undetermined(evidence: str) -> CheckAnswer:
    """It could not be seen; `evidence` says why."""
    return CheckAnswer("undetermined", evidence)


def not_applicable(evidence: str) -> CheckAnswer:
    """Nothing here that the claim is about."""
    return CheckAnswer("not applicable", evidence)


@dataclass(frozen=True)
class Check:
    """One line.

    Args:
        name: lower-case letters, digits and `-`.
        claim: what has to hold, as a sentence.
        owner: a role that answers for it; `checklists.yaml` has the people.
        lists: checklists that have it.
        remedy: what to do where it does not hold.
        examine: gives outcome and evidence. It reads only, ends within seconds and starts no server. An error of trust
            is a fail; any other error leaves the line undetermined.
        waivable: whether a signed waiver counts. Not for what waivers themselves rest on.
    """

    name: str
    claim: str
    owner: str
    lists: tuple[ChecklistName, ...]
    remedy: str
    examine: Callable[[CheckScope], CheckAnswer]
    waivable: bool = True


class CheckedLine(Frozen):
    """A line, evaluated. `waiver` is who has waived it, until when and why; `seen` the outcome under the waiver."""

    name: str
    claim: str
    outcome: Outcome
    evidence: str
    remedy: str
    owner: str
    seconds: float
    waiver: str = ""
    seen: Outcome | None = None
