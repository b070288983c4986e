"""Commands about the corpus, in the order of the pipeline.

source      `plinth corpus source value`: the value of a new source, from a sample or from runs
arpa        `plinth corpus arpa`: an n-gram model as ARPA
slices      `plinth corpus slices`: error rates of learned gates by slice
policy      `plinth corpus policy try`: another policy compared with the published verdicts
removal     `plinth corpus policy removal`: what learned rules take of every bucket
limits      `plinth corpus limits`: limits and stop words by language, from a reference bucket
near        `plinth corpus near`: documents similar to a text
funnel      `plinth corpus funnel`: documents and bytes through every stage
card        `plinth corpus card`: the data card
sample      `plinth corpus sample`, `plinth corpus review`, `plinth corpus label`: human review of removed documents
explain     `plinth explain`: one document through every stage
ledger      `plinth corpus ledger export`: one row per document, as Parquet
"""
