"""The check `marks` of every asset: it fails where the asset, or what it was made of, is marked as unfit.

The feed's sensor evaluates it for the assets that a new mark or a lifted one concerns, and every asset that is
made (plinth_assets.framework.build); it can be run by hand too.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth_assets.framework.marks import CHECK, asset_key, evaluations

DESCRIPTION = "Neither it nor what it was made of is marked as unfit (`plinth release taint list`)."


def checks(groups: Mapping[str, str], workspace: Path) -> list[dg.AssetChecksDefinition]:
    """The check of every asset, one definition a group.

    For each asset that a definition checks, Dagster goes through all that it checks: the time of one definition of all
    assets would grow with the square of their number.

    Args:
        groups: Dagster's group of each asset.
    """
    members = dict[str, list[str]]()
    for asset, group in groups.items():
        members.setdefault(group, []).append(asset)
    return [_of_group(group, assets, workspace) for group, assets in members.items()]


def _of_group(group: str, assets: Iterable[str], workspace: Path) -> dg.AssetChecksDefinition:
    specs = [dg.AssetCheckSpec(CHECK, asset=asset_key(asset), description=DESCRIPTION) for asset in assets]

    @dg.multi_asset_check(name=f"{CHECK}_of_{group}", specs=specs, can_subset=True)
    def _marks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        asked = [key.asset_key.to_user_string() for key in context.selected_asset_check_keys]
        for found in evaluations(Context(Workspace(workspace)), asked):
            yield dg.AssetCheckResult(
                asset_key=found.asset_key,
                check_name=CHECK,
                passed=found.passed,
                metadata=found.metadata,
                description=found.description,
            )

    return _marks


def concerned(ctx: Context, entries: Iterable[Any]) -> frozenset[str]:
    """Published assets whose marks some entries of the feed have changed."""
    from plinth_registry import taint

    records = {one.number: one.mark for one in taint.statements(ctx)}
    marks = [records[entry.record] for entry in entries if entry.of == "taint"]
    return frozenset(each.asset for mark in marks for each in taint.affected(ctx, mark) if each.state == "published")
