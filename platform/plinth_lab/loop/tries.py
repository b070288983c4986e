"""Tries of a loop: a signed, hash-chained log, and the state that follows from its records.

    {"kind": "loop", "rule": …, "recipe": …}    the rule, before the first try
    {"kind": "try", "try": …}                   a proposal, its seeds and its level, before anything is trained
    {"kind": "analysis", "decision": …, …}      a decision after the scores of another seed
    {"kind": "preregistration", …}              what an acceptance predicts, before the confirming runs start
    {"kind": "confirming analysis", …}          a decision about this prediction

Every record also names the try of the record before it, so that a missing record can be reported by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from plinth import fingerprint
from plinth.errors import IntegrityError, RequestError, SignatureError
from plinth.evaluation.statistics import Estimate
from plinth.records import Frozen
from plinth.storage.state import State
from plinth.trust import dsse
from plinth.trust.dsse import EVALUATOR
from plinth.trust.signed_log import SignedLog
from plinth_lab.experiments.arms import tries_of
from plinth_lab.loop.decision import HOLDS, LOWER, OPEN, Prediction, TryDecision
from plinth_lab.loop.question import BASE, Loop, RecipeProposal, merged

ACCEPTED, CONFIRMED, WITHDRAWN, SUPPORTED = "accepted", "confirmed", "withdrawn", "supported"


class Preregistration(Frozen):
    """Prediction that an acceptance makes about runs that do not exist yet: size, seeds, effect, level of the test."""

    prediction: Prediction
    base: str
    size: str
    seeds: tuple[int, ...]
    level: float
    accepted_gain: Estimate


class Try(Frozen):
    """One proposal that was tried, with its newest decisions. `base` is the arm that it was compared with."""

    number: int
    proposal: RecipeProposal
    base: str
    seeds: tuple[int, ...]
    level: float
    decision: TryDecision | None = None
    analyses: int = 0
    preregistration: Preregistration | None = None
    confirmation: TryDecision | None = None
    confirming_analyses: int = 0

    @property
    def name(self) -> str:
        return self.proposal.name

    @property
    def verdict(self) -> str:
        """Verdict in one or two words.

        An accepted arm is confirmed or withdrawn by new runs. A prediction of `higher` that holds is `supported`.
        """
        found = self.decision.outcome if self.decision else OPEN
        if found != HOLDS:
            return found
        if self.proposal.predicts.direction != LOWER:
            return SUPPORTED
        later = self.confirmation.outcome if self.confirmation else OPEN
        return {OPEN: ACCEPTED, HOLDS: CONFIRMED}.get(later, WITHDRAWN)


class LoopState(Frozen):
    """State of a loop: its rule, its tries, the runs that were started, and their cost."""

    rule: Mapping[str, Any] | None = None
    recipe: str = ""
    tries: tuple[Try, ...] = ()
    runs: tuple[str, ...] = ()
    tokens: float = 0
    flops: float = 0
    records: int = 0

    @property
    def accepted(self) -> list[Try]:
        """Tries whose overlays the base has: accepted, and not withdrawn."""
        return [one for one in self.tries if one.verdict in (ACCEPTED, CONFIRMED)]

    @property
    def base(self) -> str:
        """Name of the current base."""
        return self.accepted[-1].name if self.accepted else BASE

    def overlay(self, without: str = "") -> dict[str, Any]:
        """Return the overlay of the base, without that of one accepted try."""
        own = [one.proposal.overlay for one in self.accepted if one.name != without]
        return reduce(merged, own, dict[str, Any]())

    @property
    def analyses(self) -> int:
        """Number of interim analyses of tries and confirmations."""
        return sum(one.analyses + one.confirming_analyses for one in self.tries)

    def after(self, body: Mapping[str, Any]) -> LoopState:
        """Return the state after another record."""
        state, kind = self.model_copy(update={"records": self.records + 1}), body["kind"]
        if kind == "loop":
            return state.model_copy(update={"rule": body["rule"], "recipe": body["recipe"]})
        if kind == "try":
            return state.model_copy(update={"tries": (*self.tries, Try.model_validate(body["try"]))})
        last = self.tries[-1]
        if kind == "preregistration":
            return state._with(last, preregistration=Preregistration.model_validate(body["preregistration"]))
        decision = TryDecision.model_validate(body["decision"])
        spent = {
            "runs": (*self.runs, *body["runs"]),
            "tokens": self.tokens + body["tokens"],
            "flops": self.flops + body["flops"],
        }
        state = state.model_copy(update=spent)
        if kind == "analysis":
            return state._with(last, decision=decision, analyses=last.analyses + 1)
        return state._with(last, confirmation=decision, confirming_analyses=last.confirming_analyses + 1)

    def _with(self, last: Try, **update: Any) -> LoopState:
        return self.model_copy(update={"tries": (*self.tries[:-1], last.model_copy(update=update))})


@dataclass(frozen=True)
class TryLog:
    """Signed log of the tries of one loop in a workspace."""

    name: str

    @property
    def log(self) -> SignedLog:
        return SignedLog(
            tries_of(self.name), (EVALUATOR,), keeps_revoked=True,
            kind="urn:plinth:log:tries:v1", title=f"tries of loop {self.name}", shared=True,
        )  # fmt: skip

    def state(self, ctx: State) -> LoopState:
        """Return the state that follows from all records.

        Raises:
            SignatureError: a record was changed or removed; the message names its try.
        """
        try:
            found = self.log.records(ctx)
        except SignatureError as error:
            raise SignatureError(
                f"a try of loop {self.name} was changed or removed: {self._suspect(ctx, str(error))}",
                found=error.brief,
                expected="every record that was signed",
                remedy=error.remedy or f"restore {self.log.name}/ from a backup",
            ) from error
        return reduce(LoopState.after, (one.body for one in found), LoopState())

    def append(self, ctx: State, state: LoopState, kind: str, name: str, body: Mapping[str, Any]) -> LoopState:
        """Sign and write the next record. Return the state after it.

        Raises:
            SignatureError: the log is invalid, or this machine has no evaluator key.
            ConflictError: another process has written a record meanwhile.
        """
        whole = {"kind": kind, "name": name, "follows": state.tries[-1].name if state.tries else "", **body}
        subjects = {f"loop/{self.name}/{name or kind}": fingerprint.digest(whole)}
        self.log.append(ctx, whole, subjects, EVALUATOR, number=state.records + 1)
        return state.after(whole)

    def _suspect(self, ctx: State, text: str) -> str:
        """Return the name of the try whose record is missing or invalid, if the other records tell."""
        objects = ctx.workspace.objects(self.log.name)
        names = {int(one.removesuffix(".json")) for one in objects.names() if re.fullmatch(r"\d{5,}\.json", one)}
        gap = min(set(range(1, max(names, default=0) + 1)) - names, default=0)
        told = re.search(r"(\d{5,})\.json", text)
        number = gap or (int(told[1]) if told else max(names, default=0) + 1)
        own, after = (self._unverified(objects.get(f"{at:05d}.json")) for at in (number, number + 1))
        if own and own.get("number") != number:  # it was moved here, and names the try that it followed
            return f"{own['body'].get('follows') or 'its rule'}, record {number}"
        name = own["body"].get("name") if own else after["body"].get("follows") if after else ""
        return f"{name or 'the newest, or its rule'}, record {number}"

    def _unverified(self, found: Any) -> dict[str, Any] | None:
        """Return the predicate of a record that may be invalid, for an error message only."""
        try:
            content: dict[str, Any] = dsse.unverified(json.loads(found.data), "")["predicate"]
            return content if isinstance(content.get("body"), dict) else None
        except (AttributeError, KeyError, TypeError, ValueError, SignatureError):
            return None


def require_rule(state: LoopState, loop: Loop, recipe: str) -> None:
    """Require that the rule and the base recipe are those of the first try.

    Raises:
        RequestError: they have changed, so that the error budget of the earlier tries no longer holds.
    """
    if state.rule is None:
        return
    changed = [key for key, value in loop.rule.items() if state.rule.get(key) != value]
    changed += ["recipe"] * (state.recipe != recipe and "recipe" not in changed)
    if changed:
        raise RequestError(
            f"loop {loop.name} has changed since its first try",
            found=f"other values of {', '.join(changed)}",
            expected="the values that the first try was made with",
            remedy="restore the values, or start a loop with another name",
        )


def require_unchanged(tries: Sequence[Try], proposals: Sequence[RecipeProposal]) -> None:
    """Require that every proposal that was tried is still in the file, unchanged.

    Raises:
        IntegrityError: a proposal is missing or differs; the message names it.
    """
    known = {one.name: one for one in proposals}
    for one in tries:
        given = known.get(one.name)
        if given is None or given.model_dump(mode="json") != one.proposal.model_dump(mode="json"):
            raise IntegrityError(
                f"proposal {one.name} was {'changed' if given else 'removed'} after it was tried",
                found="another proposal of this name" if given else "no proposal of this name",
                expected=f"the proposal of try {one.number}",
                remedy="restore the proposal, and propose the change under a new name",
            )
