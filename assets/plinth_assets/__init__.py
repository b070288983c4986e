"""Dagster assets: read what is published, call plinth or the registry, check, publish, report.

    measurements/  what is measured of a checkpoint: facts, gates, items, sections of the page
    framework/  the mechanism under every asset: Stage, the up-to-date decision, suites, metadata, resources
    catalog     every stage of a recipe, upstream first

One file per stage, upstream first, with its logic:

    sources, lists, documents, models, annotate, slices, policy, dedup   plinth/corpus/STEM
    span_dedup                               plinth/corpus/dedup: semantic/, lines/, substring/
    holdout, contamination, protected        plinth/corpus/protected
    curate, funnel                           plinth/corpus/STEM
    removal_rates                            plinth/corpus/slices
    canaries                                 plinth/corpus/canaries, and its tokens
    data_card, evaluation_page               plinth/report
    tokenizer, shards                        plinth/tokens/STEM
    packing, mixture                         plinth/tokens/STEM
    ledger                                   plinth/provenance/ledger
    initial                                  plinth/training/initial, and the registry's proof
    sampled                                  plinth/training/sampled_text
    training, evaluation                     plinth/STEM
    probe_sets, probes                       plinth/evaluation/probes
    pii, tasks                               plinth/evaluation/STEM
    comparison                               plinth/evaluation/comparison
    serving                                  plinth/evaluation/serving
    candidate                                registry

Does not belong here: anything that could be a pure function (plinth), and anything that starts work (jobs).
"""
