"""Exact repeated passages.

substring         the stage: passages that occurred before, as cuts
"""
