"""Samples of releases come from the signed history, and an invalid one is reported."""

from __future__ import annotations

import pytest

from plinth.compute.context import Context
from plinth_ops.metrics.signed import canary_samples, level_samples, release_samples
from plinth_ops.metrics.table import METRICS
from plinth_registry.audit_log import RELEASES
from tests.registry.conftest import moved


def values(ctx: Context) -> dict[tuple[str, ...], float]:
    found = list(release_samples(ctx))
    for one in found:
        assert len(one.labels) == len(METRICS[one.name].labels), one
    return {(one.name, *one.labels): one.value for one in found}


def write(ctx: Context, action: str, version: str | None, previous: str | None = None) -> None:
    moved(ctx, action, version, {"checkpoint": (version or "0") * 64}, previous, at="2026-01-01T00:00:00+00:00")


def test_versions_and_movements_are_those_of_the_history(ctx: Context) -> None:
    assert values(ctx) == {("plinth_trust_broken",): 0, ("plinth_taints",): 0}
    write(ctx, "champion", "1")
    write(ctx, "champion", "2", "1")
    write(ctx, "canary", "3", "2")
    found = values(ctx)
    assert found["plinth_release_version", "demo", "champion"] == 2
    assert found["plinth_release_version", "demo", "previous"] == 1
    assert found["plinth_release_version", "demo", "canary"] == 3
    assert found["plinth_release_movements_total", "demo", "champion"] == 2
    assert found["plinth_release_timestamp_seconds", "demo"] == 1767225600
    assert found["plinth_champion_tainted", "demo"] == 0
    write(ctx, "withdrawn", None, "2")
    assert ("plinth_release_version", "demo", "champion") not in values(ctx)


def test_a_history_that_was_changed_is_broken(ctx: Context) -> None:
    write(ctx, "champion", "1")
    path = next(RELEASES.folder(ctx).glob("0*.json"))
    path.write_bytes(path.read_bytes().replace(b"ada", b"eve"))
    RELEASES.folder(ctx).joinpath("head").unlink()
    assert values(ctx)["plinth_trust_broken",] == 1


def test_without_a_recipe_no_canary_is_watched_and_nothing_measured_has_no_value(ctx: Context) -> None:
    assert list(canary_samples(ctx, lambda: pytest.fail("a recipe was read where no canary stands"))) == []
    assert {one.name for one in level_samples(ctx)} == {"plinth_sli_objective_ratio"}
