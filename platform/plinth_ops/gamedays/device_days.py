"""Game day of a device: one flipped bit in the weights of a rank, which no digest of stored bytes can show. From the
second instant on, a rank is also killed at a boundary of the rollback.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.corruption.sampling import CORRUPTION, samples
from plinth.training.parameters.run import ReplayChecks
from plinth.training.telemetry.timeline import timeline
from plinth_ops.gamedays import faults, gameday, rehearsal, warm_job
from plinth_ops.gamedays.faults import RehearsalFault
from plinth_ops.gamedays.gameday import Chooser, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal

#: One step of three is sampled.
CHECKS: Final = ReplayChecks(share=0.5)

#: Bits of an FP32 weight. A flip of a higher bit may make the loss infinite, which the guard finds first.
MANTISSA: Final = (8, 23)

#: Functions before which, or with `!` after which, the leading rank is killed. In the step of the flip, the state is
#: loaded by the rollback alone.
BOUNDARIES: Final = {
    "": "",
    "before the mismatch is logged": "plinth.training.loop:TrainingRun._undo",
    "before the rollback": "plinth.training.loop:TrainingRun._undo!",
    "before the state is loaded": "plinth.training.trainer:Trainer.load",
    "after the state is loaded": "plinth.training.trainer:Trainer.load!",
    "before the next save": "plinth.training.checkpoint.saving:Saver.save",
}


def flipped_bit(made: Rehearsal, folder: Path, chooser: Chooser) -> Struck:
    """Flip a bit of a weight on one of two ranks, before a sampled step."""
    config = made.copy(folder / "workspace", batches=faults.SOURCE, replay_checks=CHECKS)
    sampled = list(samples(config.key, CHECKS.share, config.total_steps))
    name = list(BOUNDARIES)[chooser.number % len(BOUNDARIES)]
    early, rank = chooser.choice(sampled), chooser.randrange(2)
    step = sampled[-1] if name else early  # before the last one, a checkpoint can be trusted and is loaded
    flip = RehearsalFault(kind="flip", step=step, rank=rank, value=chooser.randrange(*MANTISSA))
    kill = RehearsalFault(kind="kill", step=step, place=BOUNDARIES[name], target="rank")
    plan, environment = faults.plan(folder / "plan", flip, *[kill] * bool(name))
    status = warm_job.run(config, **environment)
    logged = BOUNDARIES[name] != BOUNDARIES["before the mismatch is logged"]
    expected = ("DeviceError", "device_error") if logged else ("RunRestarted", "restart")
    alert, after = gameday.fired(config, expected[:1], expected[1])
    clean = max((one for one in sampled if one < step), default=0)
    ours, theirs = (
        {path: digest for path, digest in rehearsal.state_digests(one).items() if path != "state.json"}
        for one in (config, made.config)
    )
    found = (
        rehearsal.finished(status),
        *(_undone(config, step, rank, clean, killed=bool(name)) if logged else ()),
        finding("the rank is killed", plan.struck(kill), bool(name)),
        finding("weights, optimizer and random state are those of an undisturbed run", ours == theirs != {}, True),
        *rehearsal.documents_found(made, config),
        rehearsal.committed_found(config),
        *alert,
    )
    killed = f", killed {name}" if name else ""
    return Struck(f"bit {flip.value:g} of a weight of rank {rank} before step {step}{killed}", found, after)


def _undone(config: RunConfig, step: int, rank: int, clean: int, *, killed: bool) -> Iterator[Outcome]:
    """Check that the device is named, and that the run went back to before the last equal replay."""
    story = timeline(config.directory.events)
    named = [(event["kind"], event["rank"], event["step"]) for event in story.of("device_error")]
    yield finding("the device is named", named, [(CORRUPTION, rank, step)])
    undone = [event["step"] <= clean for event in story.of("rolled_back")]
    resumed = [event["step"] <= clean for event in story.of("resumed")]
    once = undone == [True] or (killed and not undone and resumed[-1:] in ([True], []))
    seen = f"{len(undone)} rollbacks, then {len(resumed)} resumes"
    yield Outcome(what="the run goes back once, to before the last equal replay", passed=once, seen=seen)


FLIPPED_BIT: Final = GameDay(
    name="flipped-bit",
    hypothesis="A bit that flips in a sampled step is found by its replay; the device is named, and the run is rolled "
    "back and reaches the end state of an undisturbed run, also if a rank is killed in the rollback.",
    fault="One bit of a weight in the memory of a rank, and SIGKILL to the leading rank in the rollback.",
    protection="replay of sampled steps with the work of the ranks exchanged",
    prepare=lambda folder: rehearsal.rehearse(folder, launch=Launch(ranks=2)),
    play=flipped_bit,
    alerts=("DeviceError", "RunRestarted"),
)
