"""How one rule stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RuleState:
    """One rule: what was found against its bound; `value` is None while there is too little to judge by."""

    rule: str
    holds: bool
    value: float | None
    bound: float
    reason: str
