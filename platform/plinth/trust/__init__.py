"""Who may state what: a root of trust outside the workspace, keys by role, signed statements. Knows no MLflow.

    root        the signed record of roles, public keys, thresholds, expiry, revocations; versions that follow
    signers     one private key, wherever it is kept: a file, a variable, a command, a hardware module, a cloud
    enrolment   make a root, enrol a key, revoke it: the only place that makes keys
    versions    the next version of a root: published by one holder, or proposed and signed by several
    dsse        roles, and whose keys count for one; in-toto statements in DSSE envelopes: build, sign, verify, read,
                write
    sigstore_bundle    a bundle that somebody without a key of ours signed, verified offline
    log_record  one record of a signed log, and what it proves beside the record before
    signed_log  records that are only ever added: read, append, the newest, each proved once; a log's signed head
    standalone_verify  an export proved against a root, as one file that needs nothing else of Plinth

Does not belong here: what a statement means for a candidate (registry), lineage (provenance).
"""
