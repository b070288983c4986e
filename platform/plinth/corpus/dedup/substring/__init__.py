"""Exact repeated passages.

substring         the stage: passages that occurred before, as cuts
windows           windows of n words that occurred before: by their anchors, then by 128-bit keys
substring_verify  windows joined to passages, each compared with its first occurrence word for word
"""
