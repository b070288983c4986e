"""The whole recipe, and the checks that need more than one section."""

from __future__ import annotations

from pydantic import Field, model_validator

from plinth.recipe.corpus import Corpus
from plinth.recipe.release import Evaluation, Release
from plinth.recipe.tokens import Mixture, Shards, Tokenizer
from plinth.recipe.training import Training
from plinth.records import Frozen


class Recipe(Frozen):
    """From raw corpus to approved checkpoint. Nothing outside this file steers a run."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", description="Name of the recipe and of its runs.")
    description: str = ""
    harvest: bool = Field(False, description="Demo: harvest this machine's own text into `input/` first.")
    corpus: Corpus
    tokenizer: Tokenizer = Tokenizer()
    shards: Shards = Shards()
    mixture: Mixture
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    release: Release

    @model_validator(mode="after")
    def _names_exist(self) -> Recipe:
        for name, bucket in self.corpus.buckets.items():
            if bucket.policy not in self.corpus.policies:
                raise ValueError(
                    f"corpus.buckets.{name}.policy: no policy {bucket.policy!r}; have {sorted(self.corpus.policies)}"
                )
        for phase in self.mixture.phases:
            unknown = sorted(set(phase.weights) - set(self.corpus.buckets))
            if unknown:
                raise ValueError(
                    f"mixture.phases.{phase.name}.weights: no bucket {unknown}; have {sorted(self.corpus.buckets)}"
                )
        total = sum(phase.fraction for phase in self.mixture.phases)
        if abs(total - 1) > 1e-9:
            raise ValueError(f"mixture.phases: fractions add up to {total}, expected 1")
        ranks, micro = self.training.launch.ranks, self.training.micro_batch_sequences
        if self.training.global_batch_sequences % (ranks * micro):
            raise ValueError(
                f"training.global_batch_sequences: {self.training.global_batch_sequences} is not a multiple of "
                f"ranks x micro_batch_sequences = {ranks} x {micro}"
            )
        return self
