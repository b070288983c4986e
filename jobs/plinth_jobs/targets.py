"""Lookup of runs and models by name: run configurations, checkpoint manifests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import MissingError, PlinthError
from plinth.evaluation.comparison.models import weights
from plinth.extensions import nearest
from plinth.records import Manifest
from plinth.storage.state import resolve
from plinth.training import config
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.run_state import run_state
from plinth.training.shared_run.shipping import refresh, refresh_all

LATEST = "latest"


def find_run(ctx: Context, run: str) -> RunConfig:
    """Return the configuration of a run, named by `latest`, its ID, or a unique prefix of its ID.

    `latest` is the run that started last, in any state. Its ID is printed on standard error.

    Raises:
        MissingError: no run matches, or several runs match.
    """
    known = configurations(ctx)
    if run == LATEST:
        matching = list(newest_runs(ctx))[:1]
    else:
        matching = [run] if run in known else [name for name in known if name.startswith(run)]
    if len(matching) != 1:
        raise MissingError(
            f"no run {run!r}" if not matching else f"several runs match {run!r}",
            found=", ".join(matching or sorted(known)) or "no run in this workspace",
            remedy=(known and not matching and nearest(run, [LATEST, *known]))
            or "start a run with `plinth run`; give its ID, or `latest`",
        )
    refresh(RunDirectory(known[matching[0]].parent))  # with the handle of a job that has not started yet
    found = config.load(known[matching[0]])
    if run == LATEST:
        print(f"latest: {found.run_id} ({run_state(found)})", file=sys.stderr)
    return found


def _started(path: Path) -> float:
    """Return the Unix time of the first event in a run's timeline. If there are no events, return the time of its
    configuration file."""
    with suppress(OSError, ValueError, KeyError, TypeError), path.with_name("events.jsonl").open("rb") as stream:
        return float(json.loads(stream.readline())["time"])
    return path.stat().st_mtime


def configurations(ctx: Context) -> dict[str, Path]:
    """Return the path of every run's configuration file, by run ID. Runs of a shared workspace are brought up to
    date."""
    refresh_all(ctx.workspace)
    return {path.parent.name: path for path in ctx.workspace.runs.glob("*/config.json")}


def newest_runs(ctx: Context) -> dict[str, Path]:
    """Return the path of every run's configuration file, by run ID, the run that started last first."""
    known = configurations(ctx)
    return dict(sorted(known.items(), key=lambda item: (_started(item[1]), item[0]), reverse=True))


ALIASES = {"release": "champion", "champion": "champion", "canary": "canary"}
MODELS = ("checkpoint", "weights")
#: Maximum number of names in an error, and minimum similarity of a suggested name, as for mistyped commands.
NAMED, LIKE = 12, 0.6
#: Prefixes of a path. A target with one of them is not a version name.
PATHS = ("/", "./", "../", "~")


def model(ctx: Context, target: str, release: Callable[[], str]) -> Manifest:
    """Return the checkpoint that a target names. Signed targets are verified first.

    Args:
        target: `release`, `canary`, NAME/VERSION, NAME@ALIAS, a folder of weights, a run, RUN:STEP, or the digest of a
            checkpoint. A folder takes precedence over a version of that name (`models:/NAME/VERSION`), but not over
            `NAME@ALIAS`.
        release: function that returns the name of the recipe's release.

    Raises:
        MissingError: the target does not exist, or is not a model.
        SignatureError, LineageError, GateError: a version or a signed folder does not verify.
    """
    with hinted(ctx, target):
        return _model(ctx, target, release)


@contextmanager
def hinted(ctx: Context, target: str, others: Iterable[str] = ()) -> Iterator[None]:
    """Add a hint to the error if no model has the target's name: the closest model name in the workspace, or all names.

    Args:
        others: additional valid names.
    """
    try:
        yield
    except MissingError as error:
        known, asked = [*names(ctx), *others], target.partition(":")[0]
        if target.startswith(PATHS) or (asked and any(one.startswith(asked) for one in known)):
            raise  # the name exists; something else is missing
        if hint := nearest(target, known, cutoff=LIKE):
            error.remedy = hint
        else:
            error.expected = f"{', '.join(known[:NAMED])}, a digest or a folder"
        raise


def names(ctx: Context) -> list[str]:
    """Return the names of all models in a workspace: aliases of its release first, then runs, then versions."""
    from plinth_registry import releases

    found = [*ALIASES, "latest", *sorted(configurations(ctx))]
    with suppress(PlinthError):  # other commands report a broken history
        for record in releases.history(ctx, expired=True):
            own = [f"{record.model}@{place}" for place in sorted({*ALIASES.values()})]
            found += [*own, *([f"{record.model}/{record.version}"] if record.version else [])]
    return list(dict.fromkeys(found))


def _model(ctx: Context, target: str, release: Callable[[], str]) -> Manifest:
    from plinth_registry.releases import names_place

    if target in ALIASES:
        return _verified(ctx, f"{release()}@{ALIASES[target]}")
    if target and not names_place(target) and Path(target).is_dir():
        return _folder(ctx, Path(os.path.abspath(target)))
    if target.startswith(PATHS):
        raise MissingError(f"no folder {target}", expected="a folder with *.safetensors, config.json, tokenizer.json")
    if "@" in target or "/" in target:
        return _verified(ctx, target)
    run, colon, step = target.partition(":")
    if colon or run == "latest" or any(name.startswith(run) for name in configurations(ctx)):
        return _of_run(ctx, run, step)
    found = resolve(ctx.refs, target)
    if found.asset not in MODELS:
        raise MissingError(
            f"{target} is not a model", found=f"a manifest of {found.asset}", expected=" or ".join(MODELS)
        )
    return found


def _verified(ctx: Context, target: str) -> Manifest:
    from plinth_registry.verified import verify_model

    return ctx.refs.load(verify_model(ctx, target).checkpoint)


def _folder(ctx: Context, folder: Path) -> Manifest:
    from plinth_registry import signing

    signed = folder.name and signing.is_signed(folder)  # a signature is stored next to the folder
    return _verified(ctx, str(folder)) if signed else weights(ctx, folder)


def _of_run(ctx: Context, run: str, step: str) -> Manifest:
    from plinth.training import manifests

    config = find_run(ctx, run)
    if step and not step.isdecimal():
        raise MissingError(f"{step!r} is not a step", expected="RUN:STEP, where STEP is a whole number")
    return manifests.committed_manifest(ctx, config, int(step) if step else None)
