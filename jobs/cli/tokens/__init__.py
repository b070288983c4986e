"""Commands about tokens and mixtures.

    export_tokens  `plinth export tokens`: the shards of a bucket or of a run, for other trainers.
    mixture        `plinth mixture`: what a run sees, phase by phase, and what can be weighed.
    packing        `plinth packing`: what concatenating and best-fit make of the published shards, before one of them
    tokenizer      `plinth tokenizer`: what the audit found, and how a text is written.
"""
