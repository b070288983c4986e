"""Commands about tokens and mixtures.

tokenizer      `plinth tokens tokenizer`: the audit, or the tokens of a text
packing        `plinth tokens packing`: both packings of the published shards compared
mixture        `plinth tokens mixture`: shares and epochs of every stream by phase
"""
