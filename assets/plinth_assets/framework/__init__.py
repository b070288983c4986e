"""The mechanism under every asset: stages as data, their Dagster assets, suites and metadata.

stage         Stage: inputs, work, version and parameters of an asset, and the key that identifies the work; keys of
              inputs by bucket; the one decision of what is up to date, read by everything that starts work
build         Stage -> Dagster asset: resolve inputs once, make, check, publish, present; the workspace and its workers
              as a Dagster resource; the check of an asset against marks of unfitness
expectations  suites on statistics, never on documents; a blocking failure publishes nothing
data_docs     the same suites in Great Expectations, in a process of their own; their results and pages
present       manifests as metadata that people look at: results first, digests last
"""
