"""Plinth's library: from raw corpus to evaluated checkpoint. Knows no Dagster and no MLflow.

sources -> documents -> annotations -> policy -> dedup -> holdout -> contamination
        -> verdicts -> curated -> tokens/shards -> mixture -> run -> checkpoint -> evaluation

recipe/      the user's YAML as frozen models; the only description of a whole run
records      what flows between stages: Part, Manifest, Step
errors       one tree of exceptions: found, expected, what to do
fingerprint  canonical JSON -> SHA-256: the identity of a step, a recipe, an input
compiled     `njit` for all kernels: cached ones follow what they call
storage/     the only room that touches bytes at rest
compute/     map a function over parts on any number of workers
text/        compiled kernels over Arrow buffers
corpus/      documents in, curated documents out, with the reason for each
tokens/      tokenizer, shards, packing, mixture, data order
training/    the model, the loop, checkpoints, the supervisor
launch/      submit, poll, cancel and find training jobs again
evaluation/  bits per byte by slice, against baselines
planning/    FLOPs, memory, time
provenance/  statements, the walk back to sources, explain a document
report/      plots and self-contained pages
"""

__version__ = "0.3.0"
