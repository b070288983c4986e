"""Game day of a device: one flipped bit in the weights of a rank, which no digest of stored bytes can show."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

from plinth.launch.parameters import Launch
from plinth.training.corruption.sampling import CORRUPTION, samples
from plinth.training.parameters.run import ReplayChecks
from plinth.training.telemetry.timeline import timeline
from plinth_ops.gamedays import faults, gameday, rehearsal, warm_job
from plinth_ops.gamedays.faults import RehearsalFault
from plinth_ops.gamedays.gameday import OWN, GameDay, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal

#: One step of three is sampled.
CHECKS: Final = ReplayChecks(share=0.5)

#: Bits of an FP32 weight. A flip of a higher bit may make the loss infinite, which the guard finds first.
MANTISSA: Final = (8, 23)


def flipped_bit(made: Rehearsal, folder: Path, chooser: Random) -> Struck:
    """Flip a bit of a weight on one of two ranks, before a sampled step."""
    config = made.copy(folder / "workspace", batches=faults.SOURCE, replay_checks=CHECKS)
    sampled = list(samples(config.key, CHECKS.share, config.total_steps))
    step, rank = chooser.choice(sampled), chooser.randrange(2)
    flip = RehearsalFault(kind="flip", step=step, rank=rank, value=chooser.randrange(*MANTISSA))
    _, environment = faults.plan(folder / "plan", flip)
    status = warm_job.run(config, **environment)
    alert, after = gameday.fired(config, FLIPPED_BIT.alerts, "device_error")
    story, clean = timeline(config.directory.events), max((one for one in sampled if one < step), default=0)
    undone = [(event["step"] <= clean, event["step"] + event["undone"]) for event in story.of("rolled_back")]
    named = [(event["kind"], event["rank"], event["step"]) for event in story.of("device_error")]
    ours, theirs = (
        {path: digest for path, digest in rehearsal.state_digests(one).items() if path != "state.json"}
        for one in (config, made.config)
    )
    found = (
        rehearsal.finished(status),
        finding("the device is named", named, [(CORRUPTION, rank, step)]),
        finding("the run is rolled back once, to before the last equal replay", undone, [(True, step)]),
        finding("weights, optimizer and random state are those of an undisturbed run", ours == theirs != {}, True),
        *rehearsal.documents_found(made, config),
        rehearsal.committed_found(config),
        *alert,
    )
    return Struck(f"bit {flip.value:g} of a weight of rank {rank} before step {step}", found, after)


FLIPPED_BIT: Final = GameDay(
    name="flipped-bit",
    hypothesis="A bit that flips in a sampled step is found by its replay; the device is named, and the run is rolled "
    "back and reaches the end state of an undisturbed run.",
    fault="One bit of a weight in the memory of a rank.",
    blast_radius=OWN,
    protection="replay of sampled steps with the work of the ranks exchanged",
    abort_s=900.0,
    prepare=lambda folder: rehearsal.rehearse(folder, launch=Launch(ranks=2)),
    play=flipped_bit,
    alerts=("DeviceError",),
)
