"""Task of a run: resources and mounts from the recipe, and the script that each node runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from plinth.launch import base
from plinth.launch.parameters import Launch
from plinth.records import Frozen

#: In the run's directory: the name of the last canceled job. SkyPilot does not wait until a canceled job has saved.
CANCELLED = "cancelled"


class Options(Frozen):
    """Parameters of the launcher, below `training.launch.options`."""

    resources: Mapping[str, Any] = Field(
        default_factory=dict,
        description="Resources of each node in SkyPilot's format, for example {accelerators: 'H100:8', infra: k8s}.",
    )
    volumes: Mapping[str, str] = Field(
        default_factory=dict,
        description="SkyPilot volumes by mount path, for example {/mnt/workspace: plinth}. The workspace must have the "
        "same path on the submitting machine.",
    )
    file_mounts: Mapping[str, Any] = Field(
        default_factory=dict, description="File mounts in SkyPilot's format, for example of a bucket."
    )
    setup: str = Field("", description="Shell commands that prepare a node, for example `pip install plinth[train]`.")
    envs: Mapping[str, str] = Field(default_factory=dict, description="Environment variables of the job. No secrets.")


def task(launch: Launch, command: Sequence[str], directory: Path, log: Path, name: str) -> dict[str, Any]:
    """Return the task of a run.

    Args:
        command: command of the supervisor; `launch.python` replaces its interpreter.
        name: name of the managed job.
    """
    options = Options.model_validate(launch.options)
    recovery: dict[str, Any] = {"recover_on_exit_codes": [base.LEFT]}
    if isinstance(own := options.resources.get("job_recovery"), Mapping):
        codes = own.get("recover_on_exit_codes") or []
        own_codes = [codes] if isinstance(codes, int) else codes  # SkyPilot takes a number or a list
        recovery = {**own, "recover_on_exit_codes": [base.LEFT, *(code for code in own_codes if code != base.LEFT)]}
    elif own:
        recovery = {"strategy": own, **recovery}
    found: dict[str, Any] = {
        "name": name,
        "num_nodes": launch.machines,
        "resources": {**options.resources, "job_recovery": recovery},
        "run": script(launch, command, directory, log, name),
    }
    for key in ("envs", "volumes", "file_mounts", "setup"):
        if given := getattr(options, key):
            found[key] = dict(given) if isinstance(given, Mapping) else given
    return found


def script(launch: Launch, command: Sequence[str], directory: Path, log: Path, name: str) -> str:
    """Return the script that each node runs. It ends the job if `CANCELLED` names the job; SkyPilot then does not
    recover it."""
    words = [launch.python or "python", *command[1:]]
    lines = [
        f'canceled() {{ [ "$(cat {shlex.quote(str(directory / CANCELLED))} 2>/dev/null)" = {shlex.quote(name)} ]; }}',
        "if canceled; then exit 0; fi",
        'export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PLINTH_HOST="$(hostname)"',
    ]
    if launch.nodes > 1:
        address = 'PLINTH_ADDRESS="$(printf \'%s\\n\' "$SKYPILOT_NODE_IPS" | head -n 1)"'
        lines.append(f'export PLINTH_NODES={launch.machines} PLINTH_NODE="$SKYPILOT_NODE_RANK" {address}')
    lines += [
        "cd /",
        "( while ! canceled; do sleep 0.5; done; kill -TERM $$ ) >/dev/null 2>&1 &",
        "watcher=$!",
        *base.waiting(f"{shlex.join(['bash', '-c', base.logged(words, log)])} </dev/null"),
        'kill "$watcher" 2>/dev/null',
        "if canceled; then exit 0; fi",
        'exit "$status"',
    ]
    return "\n".join(lines) + "\n"
