"""Time that `plinth status` and Dagster's definitions take in a workspace with years of history.

    python tests/benchmarks/bench_metadata.py [--buckets N] [--manifests N] [--runs N] [--out FILE]

Synthetic: a recipe with `--buckets` buckets, of which every stage except those that query the registry is published and
up to date; and old manifests and ended runs (only their names matter, so their files are hard links to a few). Measured
in this process after its imports, which are measured by themselves in another one; wall-clock and CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.training.directory import without_result
from plinth_assets.catalog import stages
from plinth_jobs import asset_states, definitions
from plinth_jobs.recipes import load
from tests import wide_recipe

RESULTS = Path(__file__).parent / "results" / "metadata.json"
#: ext4 takes 65,000 links of a file.
LINKS = 60_000


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, cpu = time.monotonic(), time.process_time()
    found = call()
    return found, {"wall_s": round(time.monotonic() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2)}


def publish(ctx: Context, recipe: Any) -> int:
    """Every stage whose key needs no registry, up to date."""
    done: dict[str, str] = {}
    for stage in stages(recipe):
        asks = stage.outside is not None and stage.group not in ("sources", "documents")
        if asks or any(dep not in done for dep in stage.deps):
            continue
        inputs = {dep: done[dep] for dep in stage.deps}
        made = Manifest(asset=stage.asset, step="synthetic", version="1", params={}, inputs=inputs, parts=())
        ctx.refs.publish(made, stage.key(ctx, inputs))
        done[stage.asset] = made.digest
    return len(done)


def links(folder: Path, names: list[str]) -> None:
    """Files of these names, each a link of one of a few."""
    for start in range(0, len(names), LINKS):
        first = folder / names[start]
        first.write_text("{}")
        for name in names[start + 1 : start + LINKS]:
            os.link(first, folder / name)


def ended_runs(runs: Path, count: int) -> None:
    files = ("config.json", "handle.json", "result.json")
    for number in range(count):
        folder = f"{runs}/r{number:07}"
        os.mkdir(folder)
        if number % (LINKS // len(files)) == 0:
            Path(origin := f"{folder}/config.json").write_text("{}")
        for name in files:
            if f"{folder}/{name}" != origin:
                os.link(origin, f"{folder}/{name}")


def imports(module: str) -> float:
    """CPU seconds of importing a module in a process of its own."""
    code = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return round(float(said.stdout), 2)


def location(recipe: Path, workspace: Path) -> dg.RepositoryDefinition:
    """All that a code location resolves when Dagster loads it."""
    os.environ |= {"PLINTH_RECIPE": str(recipe), "PLINTH_WORKSPACE": str(workspace)}
    repository = definitions.definitions().get_repository_def()
    repository.load_all_definitions()
    return repository


def measure(folder: Path, buckets: int, manifests: int, runs: int) -> dict[str, Any]:
    ctx = Context(Workspace(folder).ensure())
    path = wide_recipe.write(folder, buckets)
    recipe = load(path)
    published = publish(ctx, recipe)
    links(folder / "manifests", [f"{number:064x}.json" for number in range(manifests)])
    ended_runs(folder / "runs", runs)
    rows, status = timed(lambda: asset_states.status(ctx, recipe))
    alive, under_way = timed(lambda: list(without_result(folder / "runs")))
    repository, loaded = timed(lambda: location(path, folder))
    assert not alive
    return {
        "assets": len(rows),
        "published": published,
        "up_to_date": sum(row["state"] == "up to date" for row in rows),
        "manifests": manifests,
        "runs": runs,
        "status": status,
        "runs_under_way": under_way,
        "definitions": loaded,
        "dagster_assets": len(repository.asset_graph.get_all_asset_keys()),
        "import_cpu_s": imports("plinth_jobs.definitions"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buckets", type=int, default=116)
    parser.add_argument("--manifests", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.buckets, given.manifests, given.runs)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
