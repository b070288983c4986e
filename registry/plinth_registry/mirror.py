"""MLflow's aliases follow the signed history; what differs is repaired and reported.

Nobody decides by setting an alias: a consumer reads the history (`standing`), and this module writes what it says to
MLflow, where people look.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from plinth.compute.context import Context
from plinth_registry import mlflow_client, releases
from plinth_registry.history import ReleaseRecord

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
        return (f"{name} is not in MLflow: somebody has deleted it",) if records else ()
    shown = {which: str(version) for which, version in model.aliases.items()}
    there = {str(version.version): version for version in mlflow_client.versions(client, name)}
    differed = []
    for which, wanted in records.standing.aliases.items():
        if shown.get(which) == wanted:
            continue
        gone = ", which is not in MLflow" if wanted and wanted not in there else ""
        said = f"the signed history says {wanted or 'unset'}{gone}"
        differed.append(f"{name}@{which} was {shown.get(which, 'unset')}, {said}")
        if wanted and not gone:
            client.set_registered_model_alias(name, which, wanted)
        elif which in shown:
            client.delete_registered_model_alias(name, which)
    return (*differed, *_foreign(client, name, there, _released(records)))


def missing(ctx: Context, client: Any, name: str) -> tuple[str, ...]:
    """What MLflow lacks of the signed history and `repair` cannot write: a deleted version keeps its number.

    Raises:
        SignatureError: the history does not hold.
    """
    records = releases.history(ctx, name)
    if mlflow_client.optional(lambda: client.get_registered_model(name)) is None:
        return (f"the registered model {name}",) if records else ()
    there = {str(version.version) for version in mlflow_client.versions(client, name)}
    places = records.standing.aliases.items()
    return tuple(f"{name} version {wanted} ({which})" for which, wanted in places if wanted and wanted not in there)


def note(client: Any, name: str, version: str | None, tag: str, value: str) -> None:
    """Show something on a version, for people; nothing where somebody has deleted it, since the record stands."""
    mlflow_client.optional(lambda: client.set_model_version_tag(name, version, tag, value))


def source_of(model: str, version: str | None) -> str:
    """Where MLflow says that the version of a release was copied from."""
    return f"models:/{model}/{version}"


def alias(client: Any, name: str, which: str) -> str | None:
    """The version that MLflow shows under an alias, or None."""
    model = mlflow_client.optional(lambda: client.get_registered_model(name))
    version = None if model is None else model.aliases.get(which)
    return None if version is None else str(version)


def _released(records: Iterable[ReleaseRecord]) -> set[tuple[str | None, str]]:
    """Number and source of every version that was ever released."""
    return {(one.version, source_of(f"{one.model}-candidate", one.candidate_version)) for one in records}


def _foreign(
    client: Any, name: str, there: Mapping[str, Any], released: Container[tuple[str | None, str]]
) -> list[str]:
    """Versions that somebody else put into the release's model, each reported once."""
    found = []
    for version in there.values():
        if (str(version.version), version.source) in released:
            if FOREIGN in version.tags:  # a promotion that was interrupted before its record, finished since
                client.delete_model_version_tag(name, version.version, FOREIGN)
        elif FOREIGN not in version.tags:
            client.set_model_version_tag(name, version.version, FOREIGN, "no record signed by the promoter")
            found.append(f"{name} version {version.version} was never released: no record signed by the promoter")
    return found
