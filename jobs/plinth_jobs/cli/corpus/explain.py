"""`plinth explain`: one document through every stage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from plinth_jobs.cli.options import Settings, Utf8Text, examples, json_option, shared

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

    Shows source, terms and licence, every score, the rules that fired with their values, duplicates, the verdict
    with its reason, edits, shard and position, training steps and checkpoints. A rejected record shows its reason.
    TEXT is the beginning of the document's text.
    """
    from plinth.provenance.explain import explain_document
    from plinth_jobs.cli import output

    trace = explain_document(settings.context(), target)
    if as_json:
        output.emit_json(trace)
    else:
        _show(trace)


def _show(trace: Mapping[str, Any]) -> None:
    from plinth_jobs.cli import output

    reason = f" ({trace['reason']})" if trace.get("reason") else ""
    output.heading(f"{trace['uri']}: {trace['status']}{reason}")
    output.facts({"id": trace.get("id"), "bucket": trace["bucket"]})
    fired = {rule["reason"]: f"{_line(rule['values'])}  ({rule['rule']})" for rule in trace.get("rules", [])}
    _section("rules that fired", fired)
    if "reject" in trace:
        return _section("reject", trace["reject"])
    document = dict(trace["document"])
    preview = str(document.pop("preview", "")).strip().splitlines()[:PREVIEW_LINES]
    _section("document", document)
    for text in preview:
        output.say(f"    | {output.plain_markup(text)}")
    _section("source", trace.get("source", {}))
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
    from plinth_jobs.cli import output

    if not values:
        return
    output.heading(title)
    known = _known(values)
    output.facts({name: _short(value) for name, value in known.items()})
    if not known:
        output.say("  nothing found")


def _line(columns: Mapping[str, Any]) -> str:
    """`word_count 155, stop_words 7`."""
    known = ", ".join(f"{name} {_short(value)}" for name, value in _known(columns).items())
    return known or "no values: it does not apply to this document"


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what has no value; `--json` has those, too."""
    return {name: value for name, value in values.items() if value is not None and value not in ("", [], {})}


def _short(value: Any) -> Any:
    """Nested values on one line; long lists by their beginning."""
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        shown = ", ".join(map(str, value[:12]))
        return f"{shown}, … ({len(value)})" if len(value) > 12 else shown
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
