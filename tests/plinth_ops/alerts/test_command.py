"""`plinth ops alerts list`: every alert has a row of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_no_two_rows_are_equal(plinth: Callable[..., Any], tmp_path: Path) -> None:
    """An alert of an absent metric names the metric."""
    every = json.loads(plinth("-w", tmp_path, "ops", "alerts", "list", "--json").out)
    shown = plinth("-w", tmp_path, "ops", "alerts", "list").out.splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in shown if "docs/runbooks/" in line]
    assert len(rows) == len(every)
    assert len({tuple(row) for row in rows}) == len(every)
    absent = [row[1] for row in rows if row[0] == "MetricAbsent"]
    assert sorted(absent) == sorted(
        value for one in every if one["name"] == "MetricAbsent" for value in one["labels"].values()
    )
    assert len(absent) > 2
