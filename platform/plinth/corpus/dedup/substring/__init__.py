"""Exact repeated passages.

substring         the stage: passages that occurred before, as cuts
windows           windows of n words that occurred before: by their anchors, then by 128-bit keys
"""
