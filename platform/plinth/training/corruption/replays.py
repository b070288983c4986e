"""Replay of a sampled step on the ranks of a run, with the work of the ranks exchanged.

    before the step    copy of the state
    the step           digests of each rank's gradient, reduced gradient, optimizer state and weights
    after it           the copy is put back, and the step is taken again with a shift k: the k-th next rank along the
                       data axis computes the gradient of a rank's batch and, with ZeRO, updates the rank's part
    then               the digests are compared; if all are equal, the state is again that after the step

The gradient travels back to its rank inside the backward pass, tensor by tensor, before it is accumulated. Reduction,
norm and update therefore take place in the same order as in the step, and the replay is bit-equal on any number of
ranks. If a digest differs, the step is replayed with more shifts, and the devices vote.

Tensor and sequence ranks exchange activations, so each of them may compute wrong values because of one faulty device.
The verdict then names all ranks of the replica.

The reduction is repeated by the same ranks, and so is the update of an optimizer that is not elementwise: a fault that
repeats itself there is not found.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.text import counted
from plinth.training.config import RunConfig
from plinth.training.corruption.sampling import CORRUPTION, is_sampled
from plinth.training.corruption.state import StateCopy, bits, digest, digest_of, weights_of
from plinth.training.corruption.votes import DeviceVerdict, Vote, judged
from plinth.training.data import Batches, StepBatch, batches_of
from plinth.training.engine.engine import Rank, TrainingEngine
from plinth.training.guard.rules import Intervention
from plinth.training.parallel.topology import ranks_of
from plinth.training.parameters.optimizers import OPTIMIZERS
from plinth.training.supervise.host_checks import HostCheck, HostReport, this_host
from plinth.training.trainer import Trainer

#: Digested parts of a step, in the order of computation.
SUBJECTS = ("gradient", "loss", "reduced gradient", "optimizer state", "weights")

#: Factor between the digests of a sequence; odd.
_NEXT = 0x9E3779B97F4A7C15 - 2**64


class ComputedStep(NamedTuple):
    """Digests of one computation of a step: for each rank, one word per subject. The `shift`-th next rank along the
    data axis did its work."""

    shift: int
    words: tuple[tuple[int, ...], ...]


class Place(NamedTuple):
    """Machine and device of a rank."""

    node: int
    host: str
    gpu: int | None
    uuid: str


class Mismatch(NamedTuple):
    """A step whose replay differed.

    Attributes:
        what: what differed first, in the order of computation.
        verdict: faulty ranks, and suspects. Both are empty if the reduction over all ranks differed.
        ranks: number of ranks whose replay differed in it; 0 if ranks differ from each other, and repeat it.
    """

    step: int
    what: str
    verdict: DeviceVerdict
    ranks: int
    places: tuple[Place, ...]

    @property
    def reason(self) -> str:
        """The mismatch in words, with the devices."""
        faulty, suspects = self.verdict
        named = " and ".join(f"rank {rank} on {self.places[rank].host}" for rank in faulty or suspects)
        who = f": {named}{'' if faulty else ' disagree'}" if named else ", and no device can be named"
        return f"the {self.what} of {counted(self.ranks, 'rank')} differs in a replay{who}"

    def rollback(self, clean: int, number: int) -> Intervention:
        """Return the rollback to before the mismatch. It skips no step: its window ends before it begins.

        Args:
            clean: last sampled step whose replay was equal; later checkpoints are not trusted.
        """
        return Intervention(
            step=self.step,
            rule=CORRUPTION,
            action="rollback",
            value=float(self.ranks),
            threshold=0.0,
            first=clean + 1,
            last=clean,
            number=number,
            reason=self.reason,
        )

    def device_errors(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of an event `device_error` for each faulty device."""
        for rank in self.verdict.faulty:
            yield {"kind": CORRUPTION, "step": self.step, "rank": rank, **self.places[rank]._asdict()}

    def reports(self) -> list[HostReport]:
        """Return the machines to exclude: those of faulty devices, unless no other machine would remain."""
        bad = {self.places[rank].host: rank for rank in self.verdict.faulty}
        if {place.host for place in self.places} <= bad.keys():
            return []
        failed = HostCheck(name="replay", outcome="fail", evidence=f"step {self.step}: {self.reason}")
        return [HostReport(node=self.places[rank].node, host=host, checks=(failed,)) for host, rank in bad.items()]


class StepReplayer:
    """Replays of the sampled steps of a run on one rank. All ranks must call the same methods."""

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        assert config.replay_checks is not None
        self.config, self.rank, self._share = config, rank, config.replay_checks.share
        self._group: Any = dist.new_group()
        self._ring = DataRing(config)
        places: list[Any] = [None] * rank.world
        dist.all_gather_object(places, _place(config, rank))
        self.places: tuple[Place, ...] = tuple(places)
        self.shift = self._ring.to_next_node(config.launch.ranks_per_node) if config.launch.nodes > 1 else 1
        #: True if every replay is computed on another host.
        self.other_hosts = all(
            one.host != places[self._ring.worker(number, self.shift)].host for number, one in enumerate(places)
        )
        self._copy, self._batches = StateCopy(), dict[int, Batches]()
        self._observed: ObservedStep | None = None

    def due(self, step: int) -> bool:
        """Return True if a step is sampled."""
        return is_sampled(self.config.key, self._share, step)

    def begin(self, engine: TrainingEngine) -> None:
        """Copy the state before a sampled step, and observe the step."""
        self.forget()
        self._copy.take(engine)
        self._observed = ObservedStep(engine, self._exchange(0))

    def forget(self) -> None:
        """Stop observing a step, because it was not completed."""
        if self._observed is not None:
            self._observed.close()
            self._observed = None
        self._copy.release()

    def check(self, trainer: Trainer, step: int) -> Mismatch | None:
        """Replay the step that was just taken. Return the mismatch, or None if the replay is equal.

        If it is equal, the state is the state after the step. Otherwise the state is undefined.
        """
        assert self._observed is not None
        taken = [self._gathered(self._observed.end())]
        self._observed = None
        taken.append(self._repeat(trainer, step, self.shift))
        if self._verdict(taken) is not None:
            others = [k for k in range(1, self._ring.size) if k != self.shift]
            taken += [self._repeat(trainer, step, k) for k in (0, self.shift, *others[:1])]
        self._copy.release()
        found = self._verdict(taken)
        if found is None:
            return None
        what, verdict = found
        subject, pairs = SUBJECTS.index(what), zip(taken[0].words, taken[1].words, strict=True)
        differing = sum(first[subject] != second[subject] for first, second in pairs)
        return Mismatch(step, what, verdict, differing, self.places)

    def wait(self) -> None:
        """Wait for all ranks."""
        dist.barrier(group=self._group)

    def close(self) -> None:
        """Free the memory of the copy."""
        self.forget()
        self._copy.close()

    def _repeat(self, trainer: Trainer, step: int, shift: int) -> ComputedStep:
        engine, ward = trainer.engine, self._ring.worker(self.rank.index, -shift)
        self._copy.put_back(engine)
        observed = ObservedStep(engine, self._exchange(shift))
        trainer.repeat(self._batch(ward, step))
        return self._gathered(observed.end())

    def _batch(self, rank: int, step: int) -> StepBatch:
        """Return another rank's batch, read from the data again."""
        if rank not in self._batches:
            self._batches[rank] = batches_of(self.config, rank)
        stream = self._batches[rank](step)
        try:
            return next(stream)
        finally:
            if hasattr(stream, "close"):  # ends the thread that reads ahead
                stream.close()

    def _exchange(self, shift: int) -> WorkExchange:
        worker, ward = (self._ring.worker(self.rank.index, by) for by in (shift, -shift))
        return WorkExchange(shift, worker, ward, self._group)

    def _gathered(self, seen: tuple[int, Tensor]) -> ComputedStep:
        shift, words = seen
        every = torch.empty(self.rank.world * len(words), dtype=words.dtype, device=words.device)
        dist.all_gather_into_tensor(every, words, group=self._group)
        return ComputedStep(shift, tuple(map(tuple, every.view(-1, len(words)).tolist())))

    def _verdict(self, taken: Sequence[ComputedStep]) -> tuple[str, DeviceVerdict] | None:
        """Return what differs first in the order of computation, and the verdict on the devices."""
        stage = self.config.parallel.zero_stage
        alike = {*SUBJECTS[-1:] * (stage < 3), *SUBJECTS[-2:] * (stage == 0)}  # equal on ranks with the same parameters
        if all(one.words == taken[0].words for one in taken) and all(
            len({taken[0].words[rank][SUBJECTS.index(what)] for rank in ranks}) == 1
            for what in alike
            for ranks in self._ring.replicas
        ):
            return None
        for subject, what in enumerate(SUBJECTS):
            if (verdict := judged(self._votes(taken, subject, what in alike))) is not None:
                return what, DeviceVerdict() if what == "reduced gradient" else verdict
        return None

    def _votes(self, taken: Iterable[ComputedStep], subject: int, alike: bool) -> Iterator[Vote]:
        """Yield what each device has computed of one subject. `alike` is True if it is the same value on all ranks with
        the same parameters."""
        what = SUBJECTS[subject]
        moved = what in ("gradient", "loss") or (what == "optimizer state" and exchanges_update(self.config))
        for one in taken:
            for rank, words in enumerate(one.words):
                about: Hashable = (what, self._ring.replica_of(rank) if alike else rank)
                device = self._ring.worker(rank, one.shift) if moved else rank
                yield Vote(about, device, words[subject])


class DataRing:
    """Order of the ranks that differ in their data alone. Each of them can do the work of any other."""

    def __init__(self, config: RunConfig) -> None:
        self._rings = ranks_of(config.parallel, config.ranks, ("data",))
        #: Groups of ranks with the same parameters.
        self.replicas = ranks_of(config.parallel, config.ranks, ("data", "sequence"))
        self._places = {rank: (ring, at) for ring in self._rings for at, rank in enumerate(ring)}

    @property
    def size(self) -> int:
        """Number of ranks of a ring."""
        return len(self._rings[0])

    def worker(self, rank: int, shift: int) -> int:
        """Return the `shift`-th next rank along the data axis."""
        ring, at = self._places[rank]
        return ring[(at + shift) % self.size]

    def replica_of(self, rank: int) -> int:
        """Return the number of the group of ranks that have the same parameters as this rank."""
        return next(number for number, ranks in enumerate(self.replicas) if rank in ranks)

    def to_next_node(self, ranks_per_node: int) -> int:
        """Return the smallest shift whose worker is on another node."""
        return -(-ranks_per_node // len(self._rings))


class WorkExchange:
    """Exchange of tensors between a rank and the rank that does its work.

    Args:
        worker: rank that does this rank's work.
        ward: rank whose work this rank does.
    """

    def __init__(self, shift: int, worker: int, ward: int, group: Any) -> None:
        self.shift, self._group = shift, group
        self._worker, self._ward = worker, ward

    def from_worker(self, tensor: Tensor) -> Tensor:
        """Return the result of the rank that does this rank's work. Send this rank's result to its ward."""
        return self._exchanged(tensor, self._ward, self._worker)

    def to_worker(self, tensor: Tensor) -> Tensor:
        """Send this rank's input to the rank that does its work. Return the input of this rank's ward."""
        return self._exchanged(tensor, self._worker, self._ward)

    def _exchanged(self, tensor: Tensor, to: int, sender: int) -> Tensor:
        if not self.shift:
            return tensor
        arrived, group = torch.empty_like(tensor, memory_format=torch.contiguous_format), self._group
        sent = tensor.detach().contiguous()
        transfers = [dist.P2POp(dist.isend, sent, to, group), dist.P2POp(dist.irecv, arrived, sender, group)]
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
        return arrived


class ObservedStep:
    """Digests of a step while it is taken, and exchange of its work.

    Hooks are attached until `end` or `close`.
    """

    def __init__(self, engine: TrainingEngine, exchange: WorkExchange) -> None:
        self._engine, self._exchange = engine, exchange
        self._words = torch.zeros(len(SUBJECTS), dtype=torch.int64, device=engine.rank.device)
        self._updates = exchange.shift > 0 and exchanges_update(engine.config)
        inner = engine.deepspeed.basic_optimizer
        trained = (parameter for parameter in engine.module.parameters() if parameter.requires_grad)
        self._handles: list[Any] = [one.register_hook(self._gradient) for one in trained]  # type: ignore[no-untyped-call]
        self._handles += [inner.register_step_pre_hook(self._before), inner.register_step_post_hook(self._after)]
        self._then, engine.on_gradient = engine.on_gradient, self._loss

    def end(self) -> tuple[int, Tensor]:
        """Return the shift and this rank's words [SUBJECTS], and remove the hooks."""
        self.close()
        device = self._engine.rank.device
        self._words[SUBJECTS.index("optimizer state")] = digest(self._engine.optimizer_tensors(), device)
        self._words[SUBJECTS.index("weights")] = digest(weights_of(self._engine), device)
        return self._exchange.shift, self._words

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._engine.on_gradient = self._then

    def _add(self, what: str, word: Tensor) -> None:
        """Add a digest to the digests of a subject, in order."""
        row = SUBJECTS.index(what)
        self._words[row] = self._words[row] * _NEXT + word.to(self._words.device)

    def _gradient(self, gradient: Tensor) -> Tensor:
        own = self._exchange.from_worker(gradient)
        self._add("gradient", digest_of(own))
        return own

    def _loss(self, loss: Tensor) -> None:
        own = self._exchange.from_worker(loss)
        self._add("loss", bits(own))
        assert self._then is not None
        self._then(own)

    @torch.no_grad()
    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Digest the gradient of an update, and pass the update on to the rank that does it."""
        for parameter in _updated(optimizer):
            self._add("reduced gradient", digest_of(parameter.grad))
            if self._updates:
                for tensor in (parameter.data, parameter.grad, *_moments(optimizer, parameter)):
                    tensor.copy_(self._exchange.to_worker(tensor))

    @torch.no_grad()
    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Receive this rank's updated state from the rank that has computed it."""
        if self._updates:
            for parameter in _updated(optimizer):
                for tensor in (parameter.data, *_moments(optimizer, parameter)):
                    tensor.copy_(self._exchange.from_worker(tensor))


def exchanges_update(config: RunConfig) -> bool:
    """Return True if another rank can update a rank's part of the state. Without ZeRO all ranks compute each update,
    and their results are compared."""
    return config.parallel.zero_stage > 0 and OPTIMIZERS.find(config.optimizer.kind).elementwise


def _place(config: RunConfig, rank: Rank) -> Place:
    node = rank.index // config.launch.ranks_per_node
    if rank.device.type != "cuda":
        return Place(node, this_host(), None, "")
    index = torch.cuda.current_device()
    return Place(node, this_host(), index, str(torch.cuda.get_device_properties(index).uuid))


def _updated(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _moments(optimizer: Any, parameter: Any) -> list[Tensor]:
    """Return the tensors of a parameter's optimizer state, in order, except its step count, which all ranks have."""
    state = optimizer.state.get(parameter, {})
    return [state[key] for key in sorted(state) if key != "step" and isinstance(state[key], Tensor)]
