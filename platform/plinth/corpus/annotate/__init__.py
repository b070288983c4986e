"""Annotators: each reads documents and writes a sidecar of scores, labels or spans; same rows, same order, no text.

    base                the record that describes an annotator
    registry            all annotators by name
    stage               run an annotator over the parts of a bucket
    language            language of a document and its paragraphs (fastText); damaged characters
    licence             a document's SPDX expression against the permitted list
    opt_out             opt-outs and a licence that the page or its server declares
    url                 blocked domains and addresses, words in addresses, reputation
    illegal             stored documents against the lists of illegal content
    rules/              scores of published rule sets: C4, FineWeb, Gopher, RedPajama, RefinedWeb, Dolma
    pii/                spans of personal data and secrets, with replacements
    perplexity          perplexity under an n-gram model, and its band
    quality_classifier  likeness to reference text
    domain              topic or function of a document
    toxicity            lexicon, classifier and second stage
    fasttext            labels and scores of a ready fastText model
    transformer         scores of a ready transformer head

Thresholds do not belong here: they are policy, applied to the columns afterwards.
"""

from plinth.corpus.annotate.base import Annotator
from plinth.corpus.annotate.registry import ANNOTATORS, annotator, parameters
from plinth.corpus.annotate.stage import libraries, run

__all__ = ["ANNOTATORS", "Annotator", "annotator", "libraries", "parameters", "run"]
