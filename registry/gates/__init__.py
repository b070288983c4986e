"""Gates: conditions on a candidate. Pure functions from a policy and evidence to (passed, reason, evidence).

    settings    the gate policy: what each gate asks, who approves, which gates are left out and why
    facts       the evidence, a record for each kind of attestation
    result      the decision of one gate
    quality     beats_gzip, beats_trigram, max_bits_per_byte; slices, probes, tasks no worse than the champion
    risk        contamination, extraction, canaries, pii_data, pii_outputs, bias, toxicity
    forgetting  no worse than the weights that the run began from, where a policy asks under `extensions`
    origin      signature, lineage, taint, licence, terms, resume, stability, cost
    operation   error_budget: of the pipeline that made the candidate
    people      approvals
    compressed  a quantised or pruned form loses little: asked of exports, not of candidates
    all_gates   all of them in order, and those of installed packages

Missing evidence fails its gate with a reason. A gate that is not asked is named by the policy, with the reason. Does
not belong here: how evidence is gathered (`registry.evidence`), who signed the policy (`registry.policy`), what follows
from a verdict (`registry.promotion`).
"""

from registry.gates.all_gates import evaluate, of_exports
from registry.gates.facts import Approval, CheckResult, Evidence, SliceScore
from registry.gates.people import APPROVALS, approvals
from registry.gates.result import GateResult, failed, open_gates
from registry.gates.settings import FeedPolicy, GatePolicy, TrialPolicy

__all__ = [
    "APPROVALS",
    "Approval",
    "CheckResult",
    "Evidence",
    "FeedPolicy",
    "GatePolicy",
    "GateResult",
    "SliceScore",
    "TrialPolicy",
    "approvals",
    "evaluate",
    "failed",
    "of_exports",
    "open_gates",
]
