"""What the process has loaded from which supervisors and ranks of rehearsals are forked: torch, DeepSpeed, the loop."""

import gc
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # rehearsals train on CPUs, whatever the machine has

import cryptography.hazmat.primitives.serialization  # noqa: F401

from plinth import entry_points
from plinth.training import data, loop  # noqa: F401
from plinth.training.checkpoint import rank_part  # noqa: F401
from plinth.training.engine.ranks import import_deepspeed
from plinth.training.supervise import supervisor  # noqa: F401

import_deepspeed(cuda=False)
entry_points.entries()
gc.freeze()  # as `python -m plinth.training` does
