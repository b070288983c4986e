"""Trust: a root of trust outside the workspace, keys by role, and signed statements. It is independent of MLflow.

    root        the signed record of roles, public keys, thresholds, expiry, revocations; successor versions
    signers     one private key: in a file, an environment variable, a command, a hardware module, or a cloud
    enrolment   creation of roots and keys, enrollment, revocation
    versions    next version of a root: published by one holder, or proposed and then signed by several holders
    dsse        roles and their keys; in-toto statements in DSSE envelopes: build, sign, verify, read,
                write
    sigstore_bundle    offline verification of a Sigstore bundle, for signers without a Plinth key
    log_record  one record of a signed log, verified as the successor of the previous record
    signed_log  append-only log of signed records: read all, append, read the newest; the signed head of a log
    transparency  entries of an external transparency log (Rekor): submit, verify offline, pin the log's key
    log_anchors  heads of a signed log in a transparency log; a log that no longer has an anchored record is refused
    standalone_verify  verification of an export against a root, as a standalone file

The effects of a statement on a candidate (registry) and lineage (provenance) do not belong here.
"""
