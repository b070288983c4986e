"""Dagster assets: read what is published, call plinth or the registry, check, publish, report.

    stage          Stage: what every asset is made from, and the key that says whether it is up to date
    build          Stage -> Dagster asset: resolve inputs once, make, check, publish, present
    expectations   Great Expectations suites on statistics; a blocking failure publishes nothing
    present        manifests to metadata that people look at: counts, schemas, tables, plots
    resources      the workspace and its workers as a Dagster resource
    catalog        every stage of a recipe, in order

One file per stage, by stem: sources, documents, annotate, policy, dedup, holdout, contamination, curate,
funnel, tokenizer, shards, packing, mixture, training, evaluation, registry.

Does not belong here: anything that could be a pure function (plinth), and anything that starts work (jobs).
"""
