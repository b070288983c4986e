"""Models trained in the line on buckets of its own corpus, each an asset with a version: `models/NAME`.

    base      what a trainer is
    registry  the list of trainers: one line each

What they say of documents is written by annotators like everything else; see `plinth.corpus.annotate`.
"""

from plinth.corpus.models.base import ModelTrainer
from plinth.corpus.models.registry import TRAINERS, parameters, train, trainer

__all__ = ["TRAINERS", "ModelTrainer", "parameters", "train", "trainer"]
