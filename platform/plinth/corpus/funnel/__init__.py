"""Documents and bytes in and out of every stage.

funnel  the account per bucket and stage
budget  the effective token budget: the share of the nominal text that is worth training on
"""
