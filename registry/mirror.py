"""MLflow's aliases follow the signed history; what differs is repaired and reported.

Nobody decides by setting an alias: a consumer reads the history (`standing`), and this module writes what it says to
MLflow, where people look.
"""

from __future__ import annotations

from typing import Any

from plinth.compute.context import Context
from registry import mlflow_client, releases
from registry.standing import standing

#: Tag of a version in a release's model that the promoter never released.
FOREIGN = "unreleased"


def repair(ctx: Context, client: Any, name: str) -> tuple[str, ...]:
    """Write the places of a release's versions to MLflow. Returns what differed, a sentence each.

    Raises:
        SignatureError: the history does not hold; then nothing is written.
    """
    records = releases.history(ctx, name)
    model = mlflow_client.optional(lambda: client.get_registered_model(name))
    if model is None:
        return ()
    shown = {which: str(version) for which, version in model.aliases.items()}
    differed = []
    for which, wanted in standing(records).aliases.items():
        if shown.get(which) == wanted:
            continue
        differed.append(f"{name}@{which} was {shown.get(which, 'unset')}, the signed history says {wanted or 'unset'}")
        if wanted is None:
            client.delete_registered_model_alias(name, which)
        else:
            client.set_registered_model_alias(name, which, wanted)
    return (*differed, *_foreign(client, name, {record.version for record in records}))


def alias(client: Any, name: str, which: str) -> str | None:
    """The version that MLflow shows under an alias, or None."""
    model = mlflow_client.optional(lambda: client.get_registered_model(name))
    version = None if model is None else model.aliases.get(which)
    return None if version is None else str(version)


def _foreign(client: Any, name: str, released: set[str | None]) -> list[str]:
    """Versions that somebody else put into the release's model, each reported once."""
    found = []
    for version in mlflow_client.versions(client, name):
        if str(version.version) in released:
            if FOREIGN in version.tags:  # a promotion that was interrupted before its record, finished since
                client.delete_model_version_tag(name, version.version, FOREIGN)
        elif FOREIGN not in version.tags:
            client.set_model_version_tag(name, version.version, FOREIGN, "no record signed by the promoter")
            found.append(f"{name} version {version.version} was never released: no record signed by the promoter")
    return found
