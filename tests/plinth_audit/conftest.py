"""Fixtures of the core that tests of these measurements use: a tiny model, curated buckets, a command line."""

from tests.jobs.cli.conftest import plinth
from tests.plinth.evaluation.conftest import checkpoint, ctx, curated, ledger, ledger_of, model_directory, tokenizer

__all__ = ["checkpoint", "ctx", "curated", "ledger", "ledger_of", "model_directory", "plinth", "tokenizer"]
