"""Every paper by its file name, and its place in an export."""

from __future__ import annotations

from plinth_audit.papers.bom import FILE as BOM
from plinth_audit.papers.bom import bom
from plinth_audit.papers.data_card import FILE as DATA_CARD
from plinth_audit.papers.data_card import data_card
from plinth_audit.papers.facts import PaperFacts
from plinth_audit.papers.model_card import FILE as MODEL_CARD
from plinth_audit.papers.model_card import model_card
from plinth_audit.papers.training_summary import FILE as TRAINING_SUMMARY
from plinth_audit.papers.training_summary import training_summary

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
