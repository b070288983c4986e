"""Signatures over statements, and the keys that make them. Knows no MLflow.

    keys    one key for each role and each approver, made on first use, private by file mode
    dsse    in-toto statements in DSSE envelopes: build, sign, verify, read, write

Does not belong here: what a statement means for a candidate (registry), lineage (provenance).
"""
