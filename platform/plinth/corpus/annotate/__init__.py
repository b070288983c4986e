"""Annotators: each reads documents and writes a sidecar, same rows, same order, no text.

    base               what an annotator is
    registry           the list of annotators: one line each
    stage              run one over the parts of a bucket; statistics for checks and plots
    language           labels of the document and its paragraphs (fastText), damaged characters
    gopher_quality     word counts and ratios of Gopher's quality rules
    gopher_repetition  repeated lines, paragraphs and n-grams
    c4, fineweb        line and page rules as scores
    licence            the document's SPDX expression against the permitted list
    pii                spans of personal data and secrets, with replacements (pii_*: the rules)

Thresholds do not belong here: they are policy, applied to the columns afterwards.
"""

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.annotate.registry import ANNOTATORS, annotator, parameters
from plinth.corpus.annotate.stage import run

__all__ = ["ANNOTATORS", "Annotator", "annotator", "parameters", "run"]
