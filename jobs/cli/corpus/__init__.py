"""Commands about the corpus.

    arpa        `plinth arpa`: an n-gram model of the line in the form that other tools read.
    ledger      `plinth ledger`: the audit trail as files for any engine that reads Parquet.
    near        `plinth near`: documents near a text.
    policy      `plinth policy try`: what another policy would change, before the line is run with it.
    quarantine  `plinth quarantine`: what the illegal-content gate stopped, without a word of it.
    sample      `plinth sample`, `plinth review`, `plinth label`: look at what was removed, and say whether that was r
    slices      `plinth slices`: how often learned gates are right, by slice.
    source      `plinth source value`: what a source would be worth, before it is taken.
"""
