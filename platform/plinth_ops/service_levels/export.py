"""Export of service levels: Parquet tables, views for DuckDB, and a tile on the index page.

    DIR/tallies.parquet      good and total seconds of every interval, by indicator and by run, asset or bucket
    DIR/objectives.parquet   every indicator with its unit, target and measure
    DIR/views.sql            level(since, until): indicators in any window; levels: in the window of the objectives;
                             by_day, by_subject
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plinth.compute.context import Context
from plinth.report.page import Standing, StateTile
from plinth.storage.atomic import write_bytes
from plinth_jobs.index_tiles import WARN_SHARE, AddedTile
from plinth_ops.service_levels import objectives
from plinth_ops.service_levels.indicators import INDICATORS
from plinth_ops.service_levels.tallies import Objectives, Tally

TALLIES, OBJECTIVES, VIEWS = "tallies.parquet", "objectives.parquet", "views.sql"

_TIME = pa.timestamp("us", tz="UTC")
_TALLY = pa.schema(
    [
        pa.field("indicator", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("begin", _TIME, nullable=False),
        pa.field("end", _TIME, nullable=False),
        pa.field("good_s", pa.float64(), nullable=False),
        pa.field("total_s", pa.float64(), nullable=False),
        pa.field("measured", pa.float64()),
        pa.field("weight", pa.float64()),
    ]
)

_VIEWS = """-- duckdb -init views.sql
create or replace view tallies as select * from '{folder}/tallies.parquet';
create or replace view objectives as select * from '{folder}/objectives.parquet';

create or replace macro inside(since, until) as table
    select *, case when "end" > "begin" then
        epoch(least("end", until) - greatest("begin", since)) / epoch("end" - "begin") else 0 end as share
    from tallies where "end" > since and "begin" < until;

create or replace macro level(since, until) as table
    select o.indicator, o.unit, o.target, coalesce(sum(good_s * share), 0) as good_s,
        coalesce(sum(total_s * share), 0) as total_s,
        sum(good_s * share) / nullif(sum(total_s * share), 0) as value,
        (sum(total_s * share) - sum(good_s * share)) / nullif((1 - o.target) * sum(total_s * share), 0) as spent,
        case when bool_or(weight is not null) then sum(measured * share) / nullif(sum(weight * share), 0)
            else max(measured) end as measure, o.measured_in
    from objectives o left join inside(since, until) t using (indicator)
    group by o.place, o.indicator, o.unit, o.target, o.measured_in order by o.place;

create or replace view levels as
    select l.* from level(timestamptz '{since}', timestamptz '{until}') l;

create or replace view by_day as
    select day, t.indicator,
        sum(good_s * epoch(least("end", day + interval 1 day) - greatest("begin", day)) / epoch("end" - "begin"))
            / nullif(sum(total_s * epoch(least("end", day + interval 1 day) - greatest("begin", day))
            / epoch("end" - "begin")), 0) as value
    from generate_series(timestamptz '{since}', timestamptz '{until}', interval 1 day) days(day)
    join tallies t on t."end" > day and t."begin" < day + interval 1 day and t."end" > t."begin"
    group by all order by all;

create or replace view by_subject as
    select indicator, subject, sum(good_s) as good_s, sum(total_s) as total_s,
        sum(good_s) / nullif(sum(total_s), 0) as value
    from tallies group by indicator, subject order by indicator, sum(total_s) - sum(good_s) desc;
"""


def export(tallies: Sequence[Tally], objectives: Objectives, until: float, directory: Path) -> list[Path]:
    """Write the tables of tallies and objectives, and the DuckDB views, to a directory; return the paths of the files.

    Args:
        until: end of the objectives' window, in Unix seconds.

    Raises:
        DiskFullError, WorkspaceError: the files cannot be written.
    """
    rows = [
        {
            **one._asdict(),
            "begin": round(one.begin * 1e6),
            "end": round(one.end * 1e6),
            "good_s": one.good_us / 1e6,
            "total_s": one.total_us / 1e6,
        }
        for one in tallies
    ]
    table = pa.Table.from_arrays(
        [pa.array([row[name] for row in rows], _TALLY.field(name).type) for name in _TALLY.names], schema=_TALLY
    )
    wanted = [
        {"place": place, "indicator": name, "unit": row.unit, "target": objectives.target(name)}
        | {"measured_in": row.measured_in}
        for place, (name, row) in enumerate(INDICATORS.items())
    ]
    folder, since = directory.absolute(), until - objectives.window_days * 86400
    text = _VIEWS.format(folder=str(folder).replace("'", "''"), since=_stamp(since), until=_stamp(until))
    made = {TALLIES: _parquet(table), OBJECTIVES: _parquet(pa.Table.from_pylist(wanted)), VIEWS: text.encode()}
    for name, data in made.items():
        write_bytes(folder / name, data)
    return [directory / name for name in made]


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def _stamp(time: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time, UTC).isoformat()


def state(ctx: Context) -> StateTile:
    """Return the index tile, which shows the error budget with the largest spent share."""
    found = objectives.measure(ctx, objectives.load(ctx.workspace), time.time())
    spent = {one.indicator: one.spent for one in found if one.is_judged and one.spent is not None}
    if not spent:
        return StateTile(label="Service levels", value="nothing measured", note="no run in the window")
    worst = max((one for one in found if one.indicator in spent), key=lambda one: spent[one.indicator])
    over = [one.indicator for one in found if one.is_spent]
    standing: Standing = "bad" if over else "attention" if spent[worst.indicator] >= WARN_SHARE else "good"
    value = f"{len(over)} of {len(spent)} error budgets exhausted" if over else f"{len(spent)} within budget"
    short = [one.words for one in found if one.total_s and not one.is_judged]
    note = f"{'; '.join([worst.words, *short])}, {objectives.source(ctx.workspace)}"
    return StateTile(label="Service levels", value=value, note=note, standing=standing)


TILE = AddedTile("service_levels", state)
