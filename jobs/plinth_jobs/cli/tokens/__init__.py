"""Commands about tokens and mixtures.

tokenizer      `plinth tokenizer`: the audit, or the tokens of a text
packing        `plinth packing`: both packings of the published shards compared
mixture        `plinth mixture`: shares and epochs of every stream by phase
export_tokens  `plinth export tokens`: shards for other trainers
"""
