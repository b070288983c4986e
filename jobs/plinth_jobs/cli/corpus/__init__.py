"""Commands about the corpus, in the order of the pipeline.

source      `plinth corpus source value`: the value of a new source, from a sample or from runs
arpa        `plinth corpus arpa`: an n-gram model as ARPA
limits      `plinth corpus limits`: limits and stop words by language, from a reference bucket
near        `plinth corpus near`: documents similar to a text
funnel      `plinth corpus funnel`: documents and bytes through every stage
card        `plinth corpus card`: the data card
ledger      `plinth corpus ledger export`: one row per document, as Parquet
"""
