"""Measure a tokenizer before anything is built on it.

    audit             the stage: sums over all parts, round trips, and the bounds that are broken
"""
