"""What leaves the workspace: a verified release with its papers and evidence, signed as one directory.

    released    a release out of the signed history, proved again; its papers and signed statements
    forms       a quantised or pruned form: measured against its release, stated by the evaluator, judged by gates
    unreleased  a checkpoint that no history released: marks on it, and the card that says so
    data        text, tokens and files of a manifest: what is tainted stays, and each export is noted
    signed_data text and tokens with a statement over their files, signed as compliance; verified offline
    sealed      the statement over every file, the model signature, the record in `exports/`

    DIRECTORY/README.md, *.safetensors, config.json, …    the model, with its card
    DIRECTORY/papers/                                     data card, bill of materials, summary of training content
    DIRECTORY/evidence/                                   signed statements, and the provenance
    DIRECTORY/model.sig                                   OpenSSF model signature of all of the above
    DIRECTORY/EXPORT.json                                 signed statement with the SHA-256 of every file

`plinth.trust.standalone_verify` proves such a directory anywhere, with nothing of the workspace.
"""
