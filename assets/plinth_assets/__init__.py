"""Dagster assets: read published inputs, call plinth or the registry, check, publish, report.

    framework/     base of every asset: Stage, the up-to-date decision, suites, metadata, resources
    measurements/  measurements of a checkpoint: facts and gates; stages with their items and sections of the page
    catalog        every stage of a recipe, upstream first

Stages by subject, upstream first, with their logic:

    sources        plinth/corpus/sources, documents/, lists/: source files, the user's lists, documents
    annotate       plinth/corpus/annotate, models/, slices/: models, annotators, error rates of learned gates
    dedup          plinth/corpus/dedup: exact, near, semantic, lines, substring
    verdicts       plinth/corpus/protected, policy/, slices/, curate: removal rates of learned rules; verdicts of
                   policies; held-out text, protected sets, one decision per document, curated text
    tokens         plinth/tokens, corpus/canaries: tokenizer, shards, packing, planted texts, mixture
    accounts       plinth/corpus, provenance/ledger/: funnel and ledger
    initial        plinth/training/initial, sampled_text, registry: existing models, and text sampled from them
    training       plinth/training: the run and its checkpoint
    candidate      plinth/report, registry: data card, evaluation page; candidate and release

Does not belong here: anything that could be a pure function (plinth), and anything that starts work (jobs).
"""
