"""Annotators. Each annotator reads documents and writes a sidecar of scores, labels or spans. The sidecar has the same
rows in the same order as the documents, but no text.

    base                the class `Annotator`, and all annotators by name
    stage               run of an annotator over the documents of a bucket
    external            annotators that a program in another environment computes
    language            language of a document and its paragraphs (fastText); damaged characters; labels and scores of a
                        pretrained fastText model or transformer head
    licence             check of a document's SPDX expression against the permitted list; opt-outs that its page or
                        server declares
    extraction          doubt of the extraction engine about a page's main content
    blocklists          blocked domains and URLs, words in URLs, reputation; check of stored documents against the
                        lists of illegal content
    rules/              scores of published rule sets: C4, FineWeb, Gopher, RedPajama, RefinedWeb, Dolma
    pii/                spans of personal data and secrets, with replacements
    llm                 answers of a language model about a sample of the documents
    student             probability of a language model's label, by a classifier that learned its labels
    learned             perplexity under an n-gram model; similarity to reference text; topic or function; toxicity

Thresholds do not belong here: policies apply them to the columns later.
"""

from plinth.corpus.annotate.base import ANNOTATORS, Annotator, annotator, parameters, resolved
from plinth.corpus.annotate.stage import libraries, run

__all__ = ["ANNOTATORS", "Annotator", "annotator", "libraries", "parameters", "resolved", "run"]
