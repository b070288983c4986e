"""Learned gates measured on documents whose truth is known: recall, false positives and over-removal by slice.

    reviews    what reviewers said of documents
"""
