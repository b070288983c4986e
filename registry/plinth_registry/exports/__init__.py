"""What leaves the workspace: a verified release with its papers and evidence, signed as one directory.

    models      a release out of the signed history, proved again, with its papers and signed statements; or a
                checkpoint that no history released, with a card that says so
    data        text and tokens: what is tainted stays, each export is noted and signed; verified offline
    sealed      the statement over every file, the model signature, the record in `exports/`; quantised or pruned forms:
                measured against their release, stated by the evaluator, judged by gates

    DIRECTORY/README.md, *.safetensors, config.json, …    the model, with its card
    DIRECTORY/papers/                                     data card, bill of materials, summary of training content
    DIRECTORY/evidence/                                   signed statements, and the provenance
    DIRECTORY/model.sig                                   OpenSSF model signature of all of the above
    DIRECTORY/EXPORT.json                                 signed statement with the SHA-256 of every file

`plinth.trust.standalone_verify` proves such a directory anywhere, with nothing of the workspace.
"""
