"""How one model is divided over devices. Bears no identity: placement decides speed and memory, not what is learnt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.records import Frozen


class Parallel(Frozen):
    """Ranks = data x tensor x pipeline x sequence; what is left after the last three is data parallel."""

    zero_stage: Literal[0, 1, 2, 3] = Field(
        1, description="DeepSpeed ZeRO: what is divided over ranks; 1 optimizer state, 2 gradients, 3 parameters too."
    )
