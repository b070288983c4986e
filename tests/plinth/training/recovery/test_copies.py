"""What a copy costs, counted, and that it is always the state as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from plinth.errors import CheckpointError
from plinth.launch.parameters import Launch
from plinth.training import wire
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Recovery
from plinth.training.recovery.keeper import CopyName, Keeper
from tests.ranks import run_ranks

COPIES = 5


def copy_and_count(config: RunConfig) -> dict[str, Any]:
    """On one rank with two keepers: bytes and operations of `COPIES` copies, and the copies after changes of the
    engine and of the connections."""
    from plinth.training.checkpoint import universal
    from plinth.training.checkpoint.staging import StagingLayout, bytes_of
    from plinth.training.engine import engine as engines
    from plinth.training.recovery import copies
    from plinth.training.recovery.copies import Copier, KeeperLink, StateForm
    from plinth.training.recovery.orders import JoinOrder
    from plinth.training.trainer import Trainer

    trainer = Trainer(config, engines.join(config))
    stream, counted = trainer.batches(1), Counter[str]()
    trainer.launch(stream, 1).read()
    keepers = [Keeper(), Keeper()]
    servers = [wire.MessageServer("secret", one.handle, everywhere=False) for one in keepers]
    addresses = [f"127.0.0.1:{one.port}" for one in servers]
    copier = Copier(trainer.engine, JoinOrder(keepers=(addresses[0],)), "secret")
    copier._keepers = [KeeperLink(one, "secret") for one in addresses]

    def copied(step: int) -> bool:
        """Copy the state, and return True if both keepers then have it as it is in the engine."""
        copier.copy(step, 0, {"loss_ema": 2.5})
        copier.wait_until_copied()
        assert copier.settle() == []
        state = [bytes(bytes_of(tensor)) for tensor in StateForm(trainer.engine).layout.tensors]
        found = [copies.fetched(CopyName(rank=0, step=step), [one], "secret") for one in addresses]
        return all([bytes(data) for data in one.bytes_of.values()] == state for one in found)

    def counting(owner: Any, name: str, amount: Callable[..., int]) -> None:
        whole = getattr(owner, name)

        def made(*args: Any, **kwargs: Any) -> Any:
            counted[name] += amount(*args)
            return whole(*args, **kwargs)

        setattr(owner, name, made)

    class Hasher:
        def __init__(self, data: Any) -> None:
            self._digest = hashed(data)
            counted["hashed"] += len(data)

        def update(self, data: Any) -> None:
            self._digest.update(data)
            counted["hashed"] += len(data)

        def hexdigest(self) -> str:
            return str(self._digest.hexdigest())

    plain, hashed = copied(1), copies.blake3
    copies.blake3 = Hasher  # type: ignore[assignment, misc]
    counting(StagingLayout, "copy", lambda layout, block: layout.bytes)
    counting(wire, "send_block", lambda connection, block: len(block))
    counting(wire, "connect", lambda *given: 1)
    counting(universal, "capture", lambda *given: 1)
    for step in range(2, 2 + COPIES):
        copier.copy(step, 0, {"loss_ema": 2.5})
        copier.wait_until_copied()
        assert copier.settle() == []
    size, form = keepers[0]._copies[0][-1].size, copier._form
    answers = {"counted": dict(counted), "size": size, "plain": plain}
    assert form is not None
    answers |= {"copied": form.layout.bytes, "state": sum(one.bytes for one in form.tensors)}

    inner = trainer.engine.deepspeed.basic_optimizer
    flat = next(one for one in inner.state if "exp_avg" in inner.state[one])
    inner.state[flat]["exp_avg"] = inner.state[flat]["exp_avg"] + 1
    answers["replaced"] = copied(20)
    copier._keepers[0]._connection.close()
    answers["closed"] = copied(21)
    copier._keepers[1]._used -= wire.STALLED_S
    answers["old"] = copied(22)
    for keeper in keepers:
        keeper._copies[0][-1].block[7] ^= 1
    with pytest.raises(CheckpointError, match="no copy of rank 0 after step 22") as failed:
        copies.fetched(CopyName(rank=0, step=22), addresses, "secret")
    answers["changed"] = str(failed.value).count("the copy has changed")
    servers[0].close()
    copier._keepers[0].close()
    copier.copy(23, 0, {})
    copier.wait_until_copied()
    answers["unreached"] = copier.settle()
    copier.abandon()
    servers[1].close()
    engines.leave()
    return answers


def test_each_byte_is_copied_once_hashed_once_and_sent_to_two_nodes(make: Callable[..., RunConfig]) -> None:
    """The form is made once, and no connection is opened for a copy."""
    config = make(launch=Launch(ranks=1), global_batch_sequences=2, recovery=Recovery(copies_every=1))
    (found,) = run_ranks(1, copy_and_count, config)
    counted = found["counted"]
    assert counted["copy"] == COPIES * found["copied"]
    assert COPIES * found["state"] < counted["hashed"] < COPIES * found["size"]
    assert counted["send_block"] == 2 * COPIES * found["size"]
    assert found["state"] > found["size"] / 2
    assert "connect" not in counted
    assert "capture" not in counted
    assert [found[name] for name in ("plain", "replaced", "closed", "old")] == [True] * 4
    assert found["changed"] == 2
    assert [reason.partition(": ")[2].partition(":")[0] for reason in found["unreached"]] == ["ConnectionRefusedError"]
