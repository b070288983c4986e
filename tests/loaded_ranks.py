"""Imports of ranks, loaded by the process from which they are forked."""

import gc

import torch._dynamo  # by the first step of an optimizer

from plinth.training import loop  # noqa: F401
from plinth.training.engine.ranks import import_deepspeed

import_deepspeed(cuda=torch.cuda.is_available())
gc.freeze()  # as `python -m plinth.training` does
