"""The example of docs/any-trainer.md as it is, with the faults of `plain_trainer` planted in released code."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import plinth.sdk
from plinth.sdk.callbacks import hugging_face

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(Path(__file__).parent))

from plain_trainer import PLAN, before, fault, plant  # noqa: E402

EXAMPLE = ROOT / "docs" / "examples" / "transformers-trainer" / "train.py"


def arm(run: plinth.sdk.Run) -> None:
    """In a step: after its batch is read. In a save: when the model is written and the generators are not."""
    import transformers

    plant(run)
    before(hugging_face.TransformersCallback, "on_step_begin", lambda _, args, state, control, **more: True,
           lambda: fault(run, "step", run.done + 1))  # fmt: skip
    before(transformers.Trainer, "_save_rng_state", lambda *_: True, lambda: fault(run, "save", run.done))


if __name__ == "__main__":
    if PLAN:
        real = plinth.sdk.Run.__enter__

        def entered(run: plinth.sdk.Run) -> Any:
            arm(run)
            return real(run)

        plinth.sdk.Run.__enter__ = entered
    runpy.run_path(str(EXAMPLE), run_name="__main__")
