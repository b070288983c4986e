"""Plinth's library, from the raw corpus to the evaluated checkpoint. It does not depend on Dagster or MLflow.

sources -> documents -> annotations -> policy -> dedup -> holdout -> contamination
        -> verdicts -> curated -> tokens/shards -> mixture -> run -> checkpoint -> evaluation

A package can import the packages below it in this list, but none above it (a layers contract in pyproject.toml checks
this). All of these packages can import `plinth_text`, which has the text kernels and the code that compiles them.

    provenance/  statements, the walk back to sources, explain a document, impact
    operation/   plans (memory, time, money), budgets and costs, goodput
    recipe/      parameters of all stages as one frozen description of a run; YAML
    report/      plots and self-contained pages
    sdk/         client for a team's own trainer: data order, timeline, checkpoint commits
    training/    the loop, data, engine, checkpoints, guard, supervisor
    evaluation/  bits per byte by slice, against baselines
    model/       the decoder: blocks, initial weights, losses, FLOPs, import and export
    tokens/      tokenizer, shards, packing, mixture, data order
    corpus/      from source records to curated documents, with the reason for each removal
    launch/      submit, poll, cancel and find training jobs again
    compute/     map a function over parts on any number of workers
    trust/       keys, and statements in signed envelopes
    storage/     the only package that reads and writes stored bytes
    text         safe display of untrusted text; canonical host names
    sections     recipe keys added by packages of the ring
    extensions   catalogs of annotators, readers, gates and launchers: built in, or from plug-ins
    entry_points   entry points of installed packages, read without an import
    records      small records that all packages use: Part, Manifest, Step
    fingerprint  canonical JSON -> SHA-256: the identity of a step, a recipe, an input
    processes    child processes: their command, folder and environment, never from a workspace
    private      private folders of this machine; permissions of written files
    errors       exception hierarchy: found, expected, remedy

The frozen parameters of a stage are in `parameters.py` next to its code; the parameters of a run are in
`training/parameters/`.
"""

__version__ = "0.4.0"
