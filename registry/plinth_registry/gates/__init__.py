"""Gates: conditions on a candidate. Pure functions from a policy and evidence to (state, reason, evidence).

    settings    the gate policy: bounds of each gate, approvers, gates that are not required and why
    facts       the evidence, a record for each kind of attestation
    result      the state of one gate, the account of all; the evaluation of every gate of a policy, in order
    margins     paired differences and upper bounds of shares, for gates of what was measured of two models; the gates
                `forgetting`, of a model that started from another, and `compressed`, of a form that is exported
    origin      signature, lineage, taint, contamination, licence, terms, resume, stability, cost; approvals

Missing evidence fails its gate with a reason; a gate that decided nothing is skipped, not applicable or pending, never
passed. Does not belong here: how evidence is gathered (`plinth_registry.evidence`), who signed the policy
(`plinth_registry.policy`), what follows from a verdict (`plinth_registry.promotion`).
"""
