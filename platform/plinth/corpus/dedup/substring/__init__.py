"""Exact repeated passages.

substring         Passages of at least so many words that occurred before, as cuts: in other documents and in the
substring_verify  Repeated windows as passages, each compared with its first occurrence on the words themselves.
windows           Windows of n words that occurred before: candidates by their anchors, then by 128-bit keys.
"""
