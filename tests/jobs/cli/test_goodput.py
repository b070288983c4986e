"""`plinth run goodput`: shares that add up, the same in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plinth_ops.service_levels.test_command import trained


def test_every_rank_second_is_shown(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path)
    done = plinth("-w", tmp_path, "run", "goodput", "run-1", "--json")
    assert done.code == 0, done.err
    made = json.loads(done.out)
    assert (made["run"], made["held_rank_s"]) == ("run-1", 22)
    assert sum(made["rank_s"].values()) == pytest.approx(made["total_rank_s"])
    assert made["goodput"] == made["rank_s"]["goodput"] / made["held_rank_s"]
    assert sum(made["percent"].values()) == pytest.approx(100)
    spent = sum(sum(one["rank_us"].values()) for one in made["attempts"])
    assert spent == round(made["total_rank_s"] * 1e6)
    shown = plinth("-w", tmp_path, "run", "goodput", "run-1").out
    assert f"goodput {100 * made['goodput']:.1f}% of 22.0 allocated rank-seconds" in shown
    assert [name for name in made["percent"] if name not in shown] == []


def test_the_heading_says_why_its_share_is_not_that_of_the_table(plinth: Any, tmp_path: Path) -> None:
    """Shares are of all rank-seconds, those in a queue too; the service level is of those that were held."""
    trained(tmp_path)
    made = json.loads(plinth("-w", tmp_path, "run", "goodput", "run-0", "--json").out)
    assert (made["rank_s"]["queue"], made["held_rank_s"]) == (100, 16)
    heading, *table = plinth("-w", tmp_path, "run", "goodput", "run-0").out.splitlines()
    share = f"{made['percent']['goodput']:.1f}%"
    assert heading.endswith(f"allocated rank-seconds (this share is the service level); {share} including queueing")
    assert next(line for line in table if line.startswith("  goodput ")).endswith(share)


def test_an_unknown_run_is_named(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path)
    refused = plinth("-w", tmp_path, "run", "goodput", "gone")
    assert refused.code != 0
    assert "gone" in refused.err
