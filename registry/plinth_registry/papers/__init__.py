"""Papers of a model: projections of signed evidence, byte for byte the same whenever they are made.

    facts             what papers say: statements, each with the digest of its evidence
    domains           training text by domain, language and licence, out of the ledger
    gather            the facts out of a verified provenance, the manifests it names, and attestations
    markdown          tables whose rows name their evidence
    model_card        README.md: the Hugging Face Hub's model card with results
    data_card         DATA_CARD.md: text, sources, terms, rules, domains
    bom               bom.cdx.json: CycloneDX bill of materials
    training_summary  TRAINING_SUMMARY.md: the European Union's summary of training content
    provider          what the provider of a release states, signed: text that no evidence can say
    subject           a verified candidate or release, with the signed statements about it
    signed            the signature of compliance under papers, and where an export needs it

No clock, no path, no recipe and no text but what a person signed enters a paper.
"""

from plinth_registry.papers.bom import FILE as BOM
from plinth_registry.papers.bom import bom
from plinth_registry.papers.data_card import FILE as DATA_CARD
from plinth_registry.papers.data_card import data_card
from plinth_registry.papers.facts import PaperFacts
from plinth_registry.papers.model_card import FILE as MODEL_CARD
from plinth_registry.papers.model_card import model_card
from plinth_registry.papers.training_summary import FILE as TRAINING_SUMMARY
from plinth_registry.papers.training_summary import training_summary

PAPERS = {
    MODEL_CARD: model_card,
    DATA_CARD: data_card,
    BOM: bom,
    TRAINING_SUMMARY: training_summary,
}


def place(name: str) -> str:
    """The name of a paper in an export: the model card lies where the Hub reads it."""
    return name if name == MODEL_CARD else f"papers/{name}"


def papers(facts: PaperFacts) -> dict[str, bytes]:
    """Every paper, by file name."""
    return {name: make(facts).encode() for name, make in PAPERS.items()}
