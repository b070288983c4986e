"""Records that the supervisors and ranks of a recovering run exchange."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from plinth.records import Frozen

#: Environment variable of a rank with its `RecoveryLink`.
VARIABLE = "PLINTH_RECOVERY"


RankPhase = Literal["starting", "restored", "running", "halted", "done"]


class RankState(Frozen):
    """Phase of a rank, the number of losses of this attempt of which it knows, the step after which the ranks continue,
    and the digest of the state of all ranks if it was restored from copies."""

    phase: RankPhase = "starting"
    epoch: int = 0
    step: int = 0
    restored: str = ""


class JoinOrder(Frozen):
    """Order of node 0 to all ranks: form new process groups and continue after a step."""

    epoch: int = 0  # number of losses since all ranks were started
    attempt: int = 0  # number of the attestation of the state after which the ranks continue, or of their start
    address: str = ""  # of the leading rank
    port: int = 0
    keepers: tuple[str, ...] = ()  # of each node, in order; empty for a node without
    history: int = 0  # of the copies that the ranks take after they have joined
    step: int | None = None  # of the copies to restore; None: from the newest checkpoint
    rollbacks: int = 0  # of the copies to restore
    restored: int = 0  # history of the copies to restore

    @property
    def continues(self) -> bool:
        """True if the ranks wait, before the first step, until their state is attested."""
        return self.epoch > 0 or self.step is not None

    def environment(self) -> dict[str, str]:
        """Return the environment variables by which the ranks find each other."""
        return {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}


class RecoveryLink(Frozen):
    """Data that a rank needs to take part in recoveries: node 0's hub, the job's secret, and the first continuation.

    If the epoch is not 0, the rank replaces a lost one, and waits for an order before it joins.
    """

    hub: str
    secret: str
    first: JoinOrder

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> RecoveryLink | None:
        """Return the link in a rank's environment, or None if the run does not recover from memory."""
        given = environment.get(VARIABLE)
        return cls.model_validate_json(given) if given else None

    def environment(self) -> dict[str, str]:
        """Return the environment variable with this link."""
        return {VARIABLE: self.model_dump_json()}


def own_keepers(keepers: tuple[str, ...], rank: int) -> list[str]:
    """Return the keepers of a rank's copies: that of its node and that of the next node, if they exist."""
    node = rank // max(1, int(os.environ["LOCAL_WORLD_SIZE"]))
    return [one for one in dict.fromkeys((keepers[node], keepers[(node + 1) % len(keepers)])) if one]
