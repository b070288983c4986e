"""Dagster assets: read what is published, call plinth or the registry, check, publish, report.

    framework/  the mechanism under every asset: Stage, the up-to-date decision, suites, metadata, resources
    catalog     every stage of a recipe, upstream first

One file per stage, by stem:
    sources, lists, documents, models, annotate, slices, policy
    dedup, span_dedup, holdout, contamination, protected, curate
    tokenizer, shards, packing, mixture, funnel, ledger
    training, evaluation, candidate

Does not belong here: anything that could be a pure function (plinth), and anything that starts work (jobs).
"""
