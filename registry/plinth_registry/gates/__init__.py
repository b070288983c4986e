"""Gates: conditions on a candidate. Pure functions from a policy and evidence to (state, reason, evidence).

    settings    the gate policy: bounds of each gate, approvers, gates that are not required and why
    facts       the evidence, a record for each kind of attestation
    result      the state of one gate, and the account of all
    margins     paired differences from the champion; upper bounds of shares
    compressed  a quantised or pruned form loses little: evaluated for exports, not for candidates
    forgetting  within a margin of the weights that the run started from, if a policy requires it under `extensions`
    origin      signature, lineage, taint, contamination, licence, terms, resume, stability, cost
    people      approvals
    all_gates   all of them in order, and those of installed packages

Missing evidence fails its gate with a reason; a gate that decided nothing is skipped, not applicable or pending, never
passed. Does not belong here: how evidence is gathered (`plinth_registry.evidence`), who signed the policy
(`plinth_registry.policy`), what follows from a verdict (`plinth_registry.promotion`).
"""

from plinth_registry.gates.all_gates import evaluate, of_exports
from plinth_registry.gates.facts import Approval, CheckResult, EvaluationFacts, Evidence, SliceScore
from plinth_registry.gates.people import approvals
from plinth_registry.gates.result import GateResult, account, blocking, is_open, outcome, summary
from plinth_registry.gates.settings import APPROVALS, FeedPolicy, GatePolicy, TrialPolicy

__all__ = [
    "APPROVALS",
    "Approval",
    "CheckResult",
    "EvaluationFacts",
    "Evidence",
    "FeedPolicy",
    "GatePolicy",
    "GateResult",
    "SliceScore",
    "TrialPolicy",
    "account",
    "approvals",
    "blocking",
    "evaluate",
    "is_open",
    "of_exports",
    "outcome",
    "summary",
]
