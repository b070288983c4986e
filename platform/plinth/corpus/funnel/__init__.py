"""Documents and bytes in and out of every stage.

budget  The effective token budget: what of the nominal text is worth training on, every factor as it was measured
funnel  The funnel: documents and bytes in and out of every stage, per bucket, and the effective token budget.
"""
