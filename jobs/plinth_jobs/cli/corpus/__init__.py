"""Commands about the corpus, in the order of the pipeline.

source      `plinth source value`: the value of a new source, from a sample or from runs
quarantine  `plinth quarantine`: hits on lists of illegal content, without their text
arpa        `plinth arpa`: an n-gram model as ARPA
slices      `plinth slices`: error rates of learned gates by slice
policy      `plinth policy try`: another policy compared with the published verdicts
removal     `plinth policy removal`: what learned rules take of every bucket
limits      `plinth limits`: limits and stop words by language, from a reference bucket
near        `plinth near`: documents similar to a text
funnel      `plinth funnel`: documents and bytes through every stage
card        `plinth card`: the data card
sample      `plinth sample`, `plinth review`, `plinth label`: human review of removed documents
explain     `plinth explain`: one document through every stage
trace       `plinth trace`: verbatim spans of a text, their documents, and the steps that saw them
ledger      `plinth ledger export`: one row per document, as Parquet
takedown    `plinth takedown`: what holds a document, its removal, and the proof
takedown_report   `plinth takedown report`: the signed proof of a removal
export_text `plinth export text`, `plinth export verify`: curated text for others
"""
