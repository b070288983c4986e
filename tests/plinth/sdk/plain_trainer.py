"""A team's trainer with torch alone: a linear model's loss on each micro batch, on any number of ranks.

Its loss is a function of the batches and of the steps taken, so a resumed run has the losses of an undisturbed one.
FAULTS is a JSON list of objects: `at` the instant, `step`, and `signal`. Each happens once, on rank 0.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import plinth.sdk
from plinth.model.decoder import Decoder
from plinth.model.hugging_face import hf_name
from plinth.sdk.data import StepBatches
from plinth.training.checkpoint import checkpoint
from plinth.training.telemetry.timeline import Timeline

PLAN: list[dict[str, Any]] = json.loads(os.environ.get("FAULTS") or "[]")


def main() -> None:
    assert {name for name in os.environ if name.startswith("PLINTH_KEY_")} <= {"PLINTH_KEY_TRAINER"}
    with plinth.sdk.run(packages=["numpy"]) as run:
        if planned("forge"):
            run.directory.evidence.write_text('{"fault": "of my own making"}')
        if run.world > 1:
            dist.init_process_group("gloo")
        plant(run)
        train(run)
        if run.world > 1:
            dist.destroy_process_group()


def train(run: plinth.sdk.Run) -> None:
    config = run.config
    torch.manual_seed(config.seed)
    with torch.device("meta"):
        shapes = {
            hf_name(name): value.shape for name, value in Decoder(config.model, config.vocab_size).named_parameters()
        }
    weights = {name: torch.full(shape, 0.01) for name, shape in shapes.items()}
    state = torch.zeros(4)
    if run.checkpoint is not None:
        state = torch.load(run.checkpoint / f"state-{run.rank}.pt")
    data = StepBatches(
        config, rank=run.rank, world=run.world, micro_batch=config.micro_batch_sequences, done=run.resumed
    )
    step, loss, count = run.resumed + 1, torch.zeros(()), 0
    for batch in data:
        if count == 0:
            run.begin()
            fault(run, "step", step)
        assert batch["step"] == step
        loss = loss + batch["input_ids"].double().mean() / config.vocab_size
        count += 1
        if count < config.global_batch_sequences // (run.world * config.micro_batch_sequences):
            continue
        if run.world > 1:
            dist.all_reduce(loss)
        state = state * 0.5 + loss
        tokens = config.tokens_through(step) + int(planned("tokens"))
        goes_on = run.step(step, loss=float(state[0]), tokens=tokens, lr=0.1)
        if run.saves_at(step):
            save(run, step, state, weights)
        if not goes_on:
            return
        step, loss, count = step + 1, torch.zeros(()), 0


def save(run: plinth.sdk.Run, step: int, state: torch.Tensor, weights: dict[str, torch.Tensor]) -> None:
    folder = run.scratch / f"at-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / f"state-{run.rank}.pt")
    if run.rank == 0:
        fault(run, "save", step)
        if not planned("no_model"):
            fields = {**run.model, **({"num_hidden_layers": 7} if planned("other_model") else {})}
            (folder / "config.json").write_text(json.dumps(fields))
            save_file({name: value + state[0].float() for name, value in weights.items()}, folder / "model.safetensors")
    run.commit(folder, step)
    if planned("damage") and run.final:
        (checkpoint.path(run.directory, 4) / "model" / "model.safetensors").write_bytes(b"damaged")


def fault(run: plinth.sdk.Run, at: str, step: int) -> None:
    """End this process, or ask its supervisor to stop, if the plan names this instant; once in the life of the run."""
    for one in PLAN:
        done = run.directory.root / f"{at}-{step}-happened"
        if run.rank == 0 and (one["at"], one.get("step")) == (at, step) and not done.exists():
            done.touch()
            number = one.get("signal", signal.SIGKILL)
            os.kill(os.getppid() if number == signal.SIGTERM else os.getpid(), number)
            until = time.monotonic() + 60
            while not run._signal and time.monotonic() < until:  # the supervisor passes the request on
                time.sleep(0.01)


def planned(at: str) -> bool:
    return at in {one["at"] for one in PLAN}


def plant(run: plinth.sdk.Run) -> None:
    """Put faults between the files of a commit and its record, and before the commit is reported."""
    before(checkpoint, "write_bytes", lambda path, *_: Path(path).parent == run.directory.checkpoints,
           lambda: fault(run, "renamed", run.done))  # fmt: skip
    before(
        Timeline, "append", lambda _, event, **fields: event == "checkpoint", lambda: fault(run, "recorded", run.done)
    )


def before(owner: Any, name: str, asks: Callable[..., bool], act: Callable[[], None]) -> None:
    real = getattr(owner, name)

    def replaced(*args: Any, **options: Any) -> Any:
        if asks(*args, **options):
            act()
        return real(*args, **options)

    setattr(owner, name, replaced)


if __name__ == "__main__":
    main()
