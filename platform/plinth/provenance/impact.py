"""The lineage read the other way: every saved manifest made, directly or not, of a digest or an asset."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.records import Frozen


class Descendant(Frozen):
    """A saved manifest with the origin in its ancestry. `steps` is the shortest way to it; 0 is the origin."""

    asset: str
    digest: str
    steps: int
    published: bool


def downstream(ctx: Context, origins: Iterable[str]) -> tuple[Descendant, ...]:
    """Everything made of the origins, nearest first, then by asset and digest.

    Args:
        origins: digests of manifests or source inventories, or asset keys (every saved version of them).

    Raises:
        IntegrityError: a saved manifest cannot be read; a mark must not miss what it hides.
    """
    assets, consumers = _links(ctx.refs.saved())
    wanted = set(origins)
    layer = wanted | {digest for digest, asset in assets.items() if asset in wanted}
    distance: dict[str, int] = {}
    steps = 0
    while layer:
        distance |= dict.fromkeys(layer, steps)
        layer = {consumer for digest in layer for consumer in consumers[digest]} - distance.keys()
        steps += 1
    published = {ref.digest for ref in ctx.refs.all()}
    found = [
        Descendant(asset=assets[digest], digest=digest, steps=away, published=digest in published)
        for digest, away in distance.items()
        if digest in assets
    ]
    return tuple(sorted(found, key=lambda each: (each.steps, each.asset, each.digest)))


def _links(manifests: Iterable[Path]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Asset by digest, and the manifests that name each digest as an input; reads every saved manifest's JSON once."""
    assets: dict[str, str] = {}
    consumers: dict[str, set[str]] = defaultdict(set)
    for path in manifests:
        try:
            content = json.loads(path.read_bytes())
            assets[path.stem] = str(content["asset"])
            inputs = list(content["inputs"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IntegrityError(
                f"{path} is not a manifest",
                found=error,
                expected=f"digest {path.stem}",
                remedy="delete the file and run the same command again",
            ) from error
        for digest in inputs:
            consumers[digest].add(path.stem)
    return assets, consumers
