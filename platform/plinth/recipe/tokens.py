"""Tokens and mixture, together."""

from plinth.recipe.mixture import Mixture, Phase
from plinth.recipe.shards import Shards
from plinth.recipe.tokenizer import Tokenizer

__all__ = ["Mixture", "Phase", "Shards", "Tokenizer"]
