"""Events of an asset: its run, its job, and its datasets by version.

    run       derived from the orchestrator's run and the asset, so that START and COMPLETE belong together
    job       the asset's stage, with the recipe and the code version as tags
    dataset   name space: the workspace; name: the asset; version: the digest of its manifest

Only a published manifest is an output. A blocked asset has inputs, and the reason as error message.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from openlineage.client import OpenLineageClient, event_v2
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    tags_job,
)

import plinth
from plinth.operation.asset_listeners import AssetUpdate
from plinth.records import Manifest
from plinth_extras.openlineage_export import settings_file

#: Identifies this producer in all events and facets.
PRODUCER: Final = f"urn:plinth:{plinth.__version__}"
#: Name space of derived run ids.
_RUNS: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:plinth:openlineage-run")
_STATES: Final = {"started": RunState.START, "published": RunState.COMPLETE, "failed": RunState.FAIL}


class _Client(OpenLineageClient):
    """Client that does not read `openlineage.yml` of the working directory, which would take precedence over
    OPENLINEAGE_URL: anyone who can write to that folder could redirect the events, or append them to another file."""

    @staticmethod
    def _find_yaml_config_path() -> str | None:
        path = settings_file()
        return str(path) if path else None


def send(update: AssetUpdate) -> None:
    """Send the event of an update through the client's own transport."""
    client = _Client()
    try:
        client.emit(event_of(update))
    finally:
        client.close()


def event_of(update: AssetUpdate) -> RunEvent:
    """Return the event of an update."""
    event_v2.set_producer(PRODUCER)
    published = update.manifest if update.state == "published" else None
    return RunEvent(
        eventType=_STATES[update.state],
        eventTime=datetime.fromtimestamp(update.at, UTC).isoformat(),
        run=Run(runId=str(run_id(update)), facets=dict(_run_facets(update))),
        job=Job(namespace=_namespace(), name=update.asset, facets=dict(_job_facets(update))),
        inputs=[_input(update.workspace, made) for made in update.inputs.values()],
        outputs=[_output(update, published)] if published else [],
        producer=PRODUCER,
    )


def run_id(update: AssetUpdate) -> uuid.UUID:
    """Return the id of one materialization of an asset."""
    return uuid.uuid5(_RUNS, f"{update.workspace}\n{update.run}\n{update.asset}\n{update.began}")


def _namespace() -> str:
    return os.environ.get("OPENLINEAGE_NAMESPACE") or "plinth"


def _run_facets(update: AssetUpdate) -> Iterator[tuple[str, Any]]:
    yield "processing_engine", processing_engine_run.ProcessingEngineRunFacet(plinth.__version__, name="Plinth")
    with suppress(ValueError):  # not the UUID of a Dagster run
        uuid.UUID(update.run)
        job = parent_run.Job(_namespace(), update.recipe or "pipeline")
        yield "parent", parent_run.ParentRunFacet(parent_run.Run(update.run), job)
    if update.error:
        yield "errorMessage", error_message_run.ErrorMessageRunFacet(update.error, "python")


def _job_facets(update: AssetUpdate) -> Iterator[tuple[str, Any]]:
    yield "jobType", job_type_job.JobTypeJobFacet("BATCH", "PLINTH", "ASSET")
    known = {"recipe": update.recipe, "code_version": update.code_version}
    tags = [tags_job.TagsJobFacetFields(key, value, "PLINTH") for key, value in known.items() if value]
    yield "tags", tags_job.TagsJobFacet(tags)


def _input(workspace: str, made: Manifest) -> InputDataset:
    read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(made.rows, made.bytes, len(made.parts))
    return InputDataset(workspace, made.asset, facets=_version(made), inputFacets={"inputStatistics": read})


def _output(update: AssetUpdate, made: Manifest) -> OutputDataset:
    facets = _version(made)
    if update.schema is not None:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(column.name, str(column.type), ordinal_position=number)
            for number, column in enumerate(update.schema, 1)
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields)
    written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        made.rows, made.bytes, len(made.parts)
    )
    return OutputDataset(update.workspace, made.asset, facets=facets, outputFacets={"outputStatistics": written})


def _version(made: Manifest) -> dict[str, Any]:
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(made.digest)}
