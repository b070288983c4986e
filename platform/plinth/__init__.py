"""Plinth's library: from raw corpus to evaluated checkpoint. Knows no Dagster and no MLflow.

sources -> documents -> annotations -> policy -> dedup -> holdout -> contamination
        -> verdicts -> curated -> tokens/shards -> mixture -> run -> checkpoint -> evaluation

A package may import those below it, never one above (a layers contract in pyproject.toml); kernels over text, and what
compiles kernels, are in `plinth_text`, below all of them:

provenance/  statements, the walk back to sources, explain a document, impact
operation/   plans (memory, time, money), what runs spend and may spend, goodput
recipe/      composes the parameters of all stages into one frozen description of a run; reads YAML
report/      plots and self-contained pages
training/    the loop, data, engine, checkpoints, guard, supervisor
evaluation/  bits per byte by slice, against baselines
model/       the decoder: blocks, initial weights, losses, FLOPs, import and export
tokens/      tokenizer, shards, packing, mixture, data order
corpus/      documents in, curated documents out, with the reason for each
launch/      submit, poll, cancel and find training jobs again
compute/     map a function over parts on any number of workers
trust/       keys, and statements in signed envelopes
storage/     the only package that touches bytes at rest
text         foreign text as it is shown; host names in one form
sections     keys of the recipe that packages of the ring add
extensions   catalogues of annotators, readers, gates and launchers: built in, or of plug-ins
entry_points   what installed packages add, read without an import
records      small records that flow throughout: Part, Manifest, Step
fingerprint  canonical JSON -> SHA-256: the identity of a step, a recipe, an input
processes    child processes: their command, folder and environment, none of them from a workspace
private      folders of this machine that nobody else can write; the permissions of all that is written
errors       one tree of exceptions: found, expected, remedy

The frozen parameters of a stage stand beside its code, in `parameters.py`; those of a run in `training/parameters/`.
"""

__version__ = "0.4.0"
