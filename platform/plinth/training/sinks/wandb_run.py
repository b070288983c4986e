"""A run of Weights & Biases, by its own client.

W&B's rows cannot be replaced. Its row number is the `seq` of the event, which rises over all restarts, and the step is
a column that charts are drawn over (`define_metric`): so a step that comes again is a row of its own, marked `redone`.
A row that a killed relay had handed over comes again under its own number, which W&B drops for a run that it knows.
"""

from __future__ import annotations

from pathlib import Path

from plinth.training.config import RunConfig
from plinth.training.sinks.relay import SinkRow


class WandbRun:
    """The run of this id; one that exists is continued. The key is W&B's own (`wandb login`, WANDB_API_KEY)."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        import wandb

        entity, _, project = config.sinks.wandb.rpartition("/")
        self._run = wandb.init(
            project=project,
            entity=entity or None,
            id=config.run_id,
            name=config.run_id,
            resume="allow",
            mode=config.sinks.wandb_mode,
            dir=str(folder),
            config=config.model_dump(mode="json", exclude={"workspace", "provenance"}),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def go_back(self, step: int) -> None:
        """Nothing: its rows stay, and those that come again are marked."""

    def write(self, row: SinkRow) -> None:
        redone = {"redone": 1.0} if row.redone else {}
        # with a number of its own a row would wait for the next one
        self._run.log({"step": row.step, **row.values, **redone}, step=row.seq, commit=True)

    def flush(self) -> None:
        """W&B's own process writes; a row is with it once `log` returns."""

    def close(self) -> None:
        self._run.finish()
