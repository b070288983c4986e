"""Manifests as Dagster metadata. The metadata is kept small, because the Dagster event log is not a data store."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from plinth.compute import context
from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.text import markdown_code, markdown_text
from plinth_assets.framework import Inputs, Stage

if TYPE_CHECKING:
    import dagster as dg
    from matplotlib.figure import Figure

    from plinth.storage.workspace import Workspace

MAX_STATS_CHARACTERS = 4_000
MAX_TABLE_ROWS = 40
PICTURE = "![plot](data:image/png;base64,"


def metadata(stage: Stage, ctx: Context, manifest: Manifest, inputs: Inputs, *, cached: bool = False) -> dict[str, Any]:
    """Return the metadata of a materialization. Plots, numbers, tables and links come first, then sizes and statistics,
    and versions last.

    Args:
        cached: True if the manifest was up to date, so that this materialization did no work.
    """
    import dagster as dg

    shown: dict[str, Any] = {"up_to_date": cached}
    making = partial(_making, ctx, stage.asset, cached)
    for part in (partial(stage.present, ctx, manifest) if stage.present else dict, making):
        try:
            shown |= part()
        except Exception as error:  # the work is done and published: a plot that fails must not undo it
            shown["presentation_failed"] = f"{type(error).__name__}: {error}"
    shown = dict(sorted(shown.items(), key=lambda item: _place(item[1])))
    shown |= {"parts": len(manifest.parts), "bytes": manifest.bytes}
    statistics = json.dumps(manifest.stats, default=str)
    if manifest.stats and len(statistics) <= MAX_STATS_CHARACTERS:
        shown["statistics"] = dg.MetadataValue.json(json.loads(statistics))
    if manifest.rows:
        shown.setdefault("dagster/row_count", manifest.rows)
    if stage.schema is not None:
        shown["dagster/column_schema"] = column_schema(stage.schema)
    return shown | {
        "dagster/uri": ctx.workspace.objects("manifests").where(f"{manifest.digest}.json"),
        "step": f"{manifest.step} {manifest.version}",
        "inputs": markdown(table(["asset", "digest"], [[k, v[:16]] for k, v in manifest.inputs.items()])),
        "code_version": stage.code_version,
        "data_version": manifest.digest,
    }


def _making(ctx: Context, asset: str, cached: bool) -> dict[str, Any]:
    """Return the cost of this materialization in dollars, CPU seconds and wall-clock seconds. The ranks of a training
    job are not included.

    A cached materialization has no cost, and links to the run that made the manifest. The result is empty if no cost
    was recorded.
    """
    import dagster as dg

    from plinth.operation import admission, spending

    last = context.load(ctx.workspace, asset)
    if cached:
        made_by = {"made_by": dg.MetadataValue.dagster_run(last.run)} if last and last.run else {}
        return {"cost_usd": money(0.0), "cpu_seconds": 0.0, "duration_seconds": 0.0, **made_by}
    if last is None:
        return {}
    return {
        "cost_usd": money(admission.stage_price(last, spending.load(ctx.workspace).prices)),
        "cpu_seconds": round(last.tasks.cpu_s + last.driver_cpu_s, 2),
        "duration_seconds": round(last.wall_s, 2),
    }


def expected_cost(workspace: Workspace, asset: str) -> dict[str, Any]:
    """Return the cost of the next materialization as metadata for the asset's definition, shown before a user starts
    it.

    The cost is that of the last materialization, for all items. The result is empty if no cost was recorded.
    """
    from plinth.operation import admission, spending

    cost = admission.expected_cost(context.load(workspace, asset), 0, spending.load(workspace).prices)
    return {"expected_cpu_hours": money(cost[0]), "expected_cost_usd": money(cost[1])} if cost else {}


def money(amount: float) -> str:
    """Format an amount with two decimals; amounts below 0.005 print as `< 0.01`."""
    return "< 0.01" if 0 < amount < 0.005 else f"{amount:,.2f}"


def page_value(ctx: Context, path: Path) -> dg.MetadataValue:
    """Return a page of the workspace as metadata: a link if pages are served, otherwise the path of its file."""
    import dagster as dg

    from plinth.storage import running

    url = running.page_url(ctx.workspace, path)
    return dg.MetadataValue.url(url) if url else dg.MetadataValue.path(path)


def _place(value: Any) -> int:
    """Return the sort key of a metadata value: plots first, then numbers, tables and text, then everything else."""
    import dagster as dg

    if isinstance(value, dg.MarkdownMetadataValue):
        return 0 if str(value.md_str).startswith(PICTURE) else 2
    return 1 if isinstance(value, int | float) else 3


def page_link(pages: str) -> dict[str, Any]:
    """Return the address of the workspace's pages as metadata of every asset. The result is empty if pages are not
    served."""
    import dagster as dg

    return {"state_and_pages": dg.MetadataValue.url(pages)} if pages else {}


def markdown(text: str) -> dg.MarkdownMetadataValue:
    """Return Markdown as metadata. Stages import Dagster only through this function, so that read-only commands do not
    import Dagster."""
    import dagster as dg

    return dg.MetadataValue.md(text)


class Code(str):
    """Text of a table cell that is shown as code."""


def table(header: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table. A long table is cut, with a note. Cells are escaped as untrusted text unless they are
    `Code`."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows[:MAX_TABLE_ROWS]]
    if len(rows) > MAX_TABLE_ROWS:
        lines.append(f"\n… and {len(rows) - MAX_TABLE_ROWS} more")
    return "\n".join(lines)


def present_statistics(ctx: Context, made: Manifest) -> dict[str, Any]:
    """Return the numbers and texts in an asset's statistics as a table."""
    rows = [[name, value] for name, value in made.stats.items() if isinstance(value, int | float | str)]
    return {"measured": markdown(table(["what", "value"], rows))}


def interval(estimate: Mapping[str, Any]) -> str:
    """Format the confidence interval of an estimate in a manifest. If there is no interval, return the estimate's
    flags."""
    if "low" in estimate:
        return f"{_cell(float(estimate['low']))} to {_cell(float(estimate['high']))}"
    return ", ".join(estimate["flags"])


def picture(draw: Callable[..., Figure], *args: Any) -> dg.MarkdownMetadataValue:
    """Return a figure drawn by a function of `plinth.report`, as an inline PNG."""
    from plinth.report.style import png

    return markdown(f"{PICTURE}{base64.b64encode(png(draw, *args)).decode()})")


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """Convert an Arrow schema to a Dagster table schema."""
    import dagster as dg

    return dg.TableSchema(
        columns=[
            dg.TableColumn(field.name, str(field.type), constraints=dg.TableColumnConstraints(nullable=field.nullable))
            for field in schema
        ]
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return markdown_code(value) if isinstance(value, Code) else markdown_text(value)
