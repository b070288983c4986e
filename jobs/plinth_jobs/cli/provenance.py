"""Provenance: `plinth explain` traces a document through every stage. `plinth verify` checks every link from a target
to its raw sources.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, Utf8Text, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context

PREVIEW_LINES = 4


@click.command(
    epilog=examples(
        "plinth explain https://articles.example/3",
        'plinth explain "It was the best of times, it was the worst"',
        "plinth run batch latest 10 --json | jq -r '.sequences[0].documents[0].id' | xargs plinth explain",
        "plinth explain 9f86d081884c7d659a2feaa0c55ad015 --json | jq .scores",
    )
)
@click.argument("target", type=Utf8Text(), metavar="DOC_ID|URI|TEXT")
@shared
@json_option
def explain(settings: Settings, target: str, as_json: bool) -> None:
    """Trace a document from its source to the training steps that read it.

    The output shows source, terms and license, scores, matched rules with their values, duplicates, the verdict with
    its reason, edits, shard and position, training steps and checkpoints. For a rejected record, it shows the reason
    for the rejection. TEXT is the beginning of the document.
    """
    from plinth.provenance.explain import explain_document

    trace = explain_document(settings.context(), target)
    if as_json:
        output.emit_json(trace)
    else:
        _show(trace)


def _show(trace: Mapping[str, Any]) -> None:
    reason = f" ({trace['reason']})" if trace.get("reason") else ""
    output.heading(f"{trace['uri']}: {trace['status']}{reason}")
    output.facts({"id": trace.get("id"), "bucket": trace["bucket"]})
    fired = {rule["reason"]: f"{_line(rule['values'])}  ({rule['rule']})" for rule in trace.get("rules", [])}
    _section("matched rules", fired)
    if "reject" in trace:
        return _section("reject", trace["reject"])
    document = dict(trace["document"])
    preview = str(document.pop("preview", "")).strip().splitlines()[:PREVIEW_LINES]
    _section("document", document)
    for text in preview:
        output.say(f"    | {output.plain_markup(text)}")
    _section("source", trace.get("source", {}))
    for origin in trace.get("derived_from", []):
        _section("derived from", origin)
    _section("scores", {name: _line(columns) for name, columns in trace.get("scores", {}).items()})
    for name in ("policy", "verdict", "holdout", "contamination", "protected", "curated"):
        if trace.get(name):
            _section(name, trace[name])
    _section("edits", {str(index): _line(edit) for index, edit in enumerate(trace.get("edits", []))})
    for kind, found in trace.get("dedup", {}).items():
        _section(f"duplicates: {kind}", {name: value for name, value in found.items() if name != "members"})
        for one in found.get("members") or ():
            kept = "survives" if one["survivor"] else "        "
            output.say(f"    | {kept}  {one['id']}  {one['bucket']}  {output.plain_markup(one['uri'])}")
    for place in trace.get("tokens", []):
        _section("tokens", place)
    for run in trace.get("training", []):
        _section("training", run)
    for name in ("also", "stale"):
        if trace.get(name):
            _section(name, {str(index): value for index, value in enumerate(trace[name])})
    return None


def _section(title: str, values: Mapping[str, Any]) -> None:
    if not values:
        return
    output.heading(title)
    known = _known(values)
    output.facts({name: _short(value) for name, value in known.items()})
    if not known:
        output.say("  none")


def _line(columns: Mapping[str, Any]) -> str:
    """Format a document's columns on one line: `word_count 155, stop_words 7`."""
    known = ", ".join(f"{name} {_short(value)}" for name, value in _known(columns).items())
    return known or "no values, since they do not apply to this document"


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without empty values, which only `--json` prints."""
    return {name: value for name, value in values.items() if value is not None and value not in ("", [], {})}


def _short(value: Any) -> Any:
    """Format nested values on one line and truncate long lists."""
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        shown = ", ".join(map(str, value[:12]))
        return f"{shown}, … ({len(value)})" if len(value) > 12 else shown
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


@click.command(
    epilog=examples(
        "plinth verify release",
        "plinth verify release --consumer search",
        "plinth verify demo/1",
        "plinth verify web/shards --fast",
        "plinth verify workspace/models/3fa9c1d2e0b4",
        "plinth verify /srv/llama --root root.json",
    )
)
@click.argument("target")
@shared
@recipe_option
@click.option("--fast", is_flag=True, help="Check only that blobs exist with the right size, without hashing.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Root of trust (root.json) with which an export is verified.",
)
@click.option(
    "--consumer", metavar="NAME", help="Name of a consumer; `release` then means the version that serves this consumer."
)
@click.option("--unreleased", is_flag=True, help="Accept an export of an unreleased checkpoint.")
@click.option("--sigstore", metavar="BUNDLE", type=click.Path(path_type=Path, dir_okay=False),
              help="Also verify this Sigstore bundle, which signs the export's statement.")  # fmt: skip
@click.option("--trusted-root", type=click.Path(path_type=Path, dir_okay=False),
              help="Sigstore's trusted_root.json.")  # fmt: skip
@json_option
def verify(
    settings: Settings, target: str, fast: bool, root: Path | None, consumer: str | None, unreleased: bool,
    sigstore: Path | None, trusted_root: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Verify every link from TARGET to its raw sources; report the first broken link.

    TARGET is `release` (or `canary`), a model version NAME/VERSION or NAME@ALIAS, a model directory, an asset, or a
    digest. The exit code is 8 if a link, a signature or the record of the release is broken.

    An export directory is verified offline against the root of trust: no workspace, MLflow or network is needed. The
    default root is the root pinned on this machine. If there is a local workspace, the command also checks whether the
    export was later rolled back or tainted. A Sigstore bundle is accepted if the root lists the bundle's signer
    (`plinth keys identity`).
    """
    from plinth_jobs import targets
    from plinth_registry.releases import names_place

    if (sigstore is None) != (trusted_root is None):
        raise click.UsageError("--sigstore BUNDLE and --trusted-root FILE must be used together")
    if root or sigstore or (_is_export(target) and not names_place(target)):
        given = (sigstore, trusted_root) if sigstore and trusted_root else None
        _show_export(settings, Path(target), root, unreleased, given, as_json)
        return
    ctx = settings.context()
    with targets.hinted(ctx, target, (ref.asset for ref in ctx.refs.all())):
        proved = _verified(settings, ctx, target, fast, consumer)
    if as_json:
        output.emit_json(proved)
        return
    output.say(f"{target} is verified down to its raw sources.")
    output.facts({name: value for name, value in proved.items() if not isinstance(value, dict | list)})
    for name, digest in proved.get("sources", {}).items() if isinstance(proved.get("sources"), dict) else ():
        output.say(f"  {name}  {digest[:16]}")


def _is_export(target: str) -> bool:
    from plinth.trust.standalone_verify import EXPORT

    return (Path(target) / EXPORT).is_file()


def _show_export(
    settings: Settings,
    target: Path,
    root: Path | None,
    unreleased: bool,
    sigstore: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    from plinth.storage.workspace import Workspace
    from plinth.trust.root import ROOT_FILE
    from plinth_registry import exports
    from plinth_registry.exports import models

    workspace = Workspace(settings.workspace)
    pinned = root or workspace.trust_folder / ROOT_FILE
    proved = exports.verify(target, pinned, unreleased=unreleased)
    if root is None and workspace.releases.is_dir():
        models.require_standing(settings.context(), proved)
    if sigstore:
        proved["sigstore"] = exports.verify_bundle(target, pinned, *sigstore, proved["role"]).model_dump()
    if as_json:
        output.emit_json(proved)
        return
    output.say(f"{target} is verified: {counted(proved['files'], 'file')} of {proved['name']} ({proved['status']}).")
    output.say(f"Signed by {', '.join(proved['signed_by'])} as {proved['role']}, at {proved['at']}, {proved['root']}.")
    if by := proved.get("sigstore"):
        line = f"Signed through Sigstore by {by['identity']} ({by['issuer']}) as {by['role']}, logged at {by['at']}."
        output.say(output.plain_markup(line))
    output.facts({name: proved[name] for name in ("number", "policy", "checkpoint", "release")})
    output.facts(proved["evidence"])


def _verified(settings: Settings, ctx: Context, target: str, fast: bool, consumer: str | None) -> dict[str, Any]:
    """Verify a model by its signature, or any other target by its lineage, and return the facts that were verified."""
    from plinth.provenance import lineage
    from plinth_jobs.targets import ALIASES
    from plinth_registry.verified import verify_model

    if consumer is not None:
        if target in ALIASES:
            name = settings.load_recipe().required_release().name
            target = name if ALIASES[target] == "champion" else f"{name}@{ALIASES[target]}"
        return verify_model(ctx, target, deep=not fast, consumer=consumer).model_dump(mode="json")
    if target in ALIASES:
        target = f"{settings.load_recipe().required_release().name}@{ALIASES[target]}"
    if ctx.refs.ref(target) is not None:
        return lineage.verify(ctx, ctx.refs.current(target), fast=fast).model_dump(mode="json")
    named = "@" in target or "/" in target or Path(target).is_dir()
    if named or any(ctx.workspace.models.glob(f"{target[:12]}*")) or not set(target) <= set(string.hexdigits):
        return verify_model(ctx, target, deep=not fast).model_dump(mode="json")
    return lineage.verify(ctx, target, fast=fast).model_dump(mode="json")
