"""Modules that are preloaded in the parent process of supervisors and ranks: torch, DeepSpeed, the training loop."""

import gc
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # rehearsals always train on CPUs

import cryptography.hazmat.primitives.serialization  # noqa: F401

from plinth import entry_points
from plinth.training import data, loop  # noqa: F401
from plinth.training.checkpoint import rank_part  # noqa: F401
from plinth.training.engine.ranks import import_deepspeed
from plinth.training.supervise import supervisor  # noqa: F401

import_deepspeed(cuda=False)
entry_points.entries()
gc.freeze()  # as `python -m plinth.training` does
