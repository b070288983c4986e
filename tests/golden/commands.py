"""The shape of what every command answers with `--json`: keys and types, not values.

A key that is data (a digest, an asset, a date) is `*`; one that some items of a list lack ends with `?`. A new command
with `--json` needs a line in `CALLS`, or in `NOT_CALLED` the place where its keys are tested. Answers keep the name
that their command had before it came below a noun: `funnel` is that of `plinth corpus funnel`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import click

#: A command line for each command, in an order in which they work on one released workspace.
CALLS = """
status
doctor
ops check list
ops check run readiness
ops check waive root-shared --until 2030-01-01 --reason "asked for by the tests"
recipe check {recipe}
recipe schema
recipe show {recipe}
ops gameday list
corpus scale 100TB --html 600TB
run plan
ops cost corpus
ops cost limit all 5
ops cost limits
ops cost show
ops gc
ops gc pins
report pages
report
corpus quarantine hash {file}
corpus policy try {policy}
corpus near {text}
corpus funnel
corpus card
corpus sample --reason near_duplicate
corpus label {document} good
corpus review summary
explain {uri}
corpus trace {text}
corpus ledger export {out}/ledger
corpus takedown find --text {text}
tokens tokenizer
tokens packing
tokens mixture
run history
run show latest
run job status latest
run timeline latest
run goodput latest
ops sli
ops sli export {out}/sli
run batch latest 1
run checkpoint list latest
run checkpoint verify latest
model evaluation
model probes list
model probes check {probe}
model probes explain code/brackets/03
model compare champion {run}
experiment scaling fit {table} --draws 100
experiment scaling predict {table} --params 1e9 --tokens 1e10 --draws 100 --out {out}/prediction.json
experiment scaling compare {out}/prediction.json --loss 2.31
ops metrics list
ops alerts list
ops retrospective
keys show
gates show
gates verdict 1
gates check {gates}
gates waive 1 stability --until 2030-01-01 --reason "asked for by the tests"
verify release
release papers
release provider
release consumer add search --owner tests@example.org --model tiny@champion
release consumer list
release consumer feed
export restore {digest} {out}/restored
export {out}/exported code/shards
export text --to {out}/text
export verify {out}/text
export tokens web --format megatron --to {out}/tokens
ops incident open fault
ops incident note text
ops incident show
ops incident close --reason "the fault is over"
ops incident list
run job cancel latest
run job submit latest
release impact web
release log
run
approve 1
release promote 1 --by tests --reason "asked for by the tests"
release rollback --withdraw --by tests --reason "asked for by the tests"
corpus takedown exclude --url {uri} --reason "asked for by the tests"
corpus takedown list
release taint mark {digest} --by tests --reason "asked for by the tests"
release taint list
release taint lift {digest} --by tests --reason "asked for by the tests"
gates sign {gates} --yes
ops backup to {out}/backup
ops backup list {out}/backup
ops backup drill {out}/backup
down
"""
#: Commands that load or train a model.
MODEL_CALLS = """
run roofline latest
run replay latest 34
run blame latest 34
model generate latest hello --max-tokens 4
export model release {out}/model
export checkpoint latest {out}/dcp
run checkpoint average latest --steps 32,40
"""
#: Commands that a workspace of the tiny recipe has nothing for, or that take minutes: where their keys are tested.
NOT_CALLED = {
    "alerts silences": "asks Alertmanager: tests/plinth/operation",
    "audit resume": "ten CPU seconds: tests/plinth/training/forensics",
    "canary": "no canary is on trial: tests/jobs/cli/test_canary.py",
    "drift": "the champion has not drifted: tests/plinth_audit/drift",
    "experiment check": "trains arms: tests/plinth_lab/experiments/test_run.py",
    "experiment list": "no experiments: tests/plinth_lab/experiments/test_list.py",
    "experiment loop": "trains arms: tests/plinth_lab/loop/test_real_loop.py",
    "experiment propose": "trains arms: tests/plinth_lab/mixture/test_swarm_run.py",
    "experiment run": "trains arms: tests/plinth_lab/experiments/test_run.py",
    "experiment show": "trains arms: tests/plinth_lab/experiments/test_run.py",
    "exposure": "no canaries are planted: tests/plinth_audit/canaries",
    "fairness": "not measured: tests/plinth_audit/fairness",
    "init": "writes a project: tests/jobs/test_dg.py",
    "federated rounds": "no federation: tests/jobs/cli/test_federated.py",
    "people list": "needs the MLflow login: tests/jobs/cli/test_people.py",
    "policy removal": "no learned rule: tests/jobs/test_web.py",
    "qualify": "measures for minutes: tests/plinth_lab/qualification",
    "profile": "no run is under way: tests/jobs/cli/test_profile.py",
    "run contract show": "no contract: tests/jobs/cli/test_contract.py",
    "run contract sign": "the run has started: tests/jobs/cli/test_contract.py",
    "scaling curve": "needs a trained ladder: tests/plinth_lab/scaling/test_curve.py",
    "quarantine": "no lists of illegal content: tests/jobs/test_illegal.py",
    "quarantine find": "no lists of illegal content: tests/jobs/test_illegal.py",
    "run upgrade": "needs other code: tests/plinth/training/upgrade",
    "slices": "no learned gate: tests/jobs/test_slices.py",
    "takedown report": "needs everything made again: tests/plinth_audit/takedown/test_states.py",
    "release anchor": "needs a Rekor server: tests/jobs/cli/test_anchor.py",
    "source value": "trains byte models: tests/plinth_lab/source_value/test_command.py",
}


def calls(text: str) -> dict[str, list[str]]:
    """The words of each call, by command."""
    known = with_json()
    found = dict[str, list[str]]()
    for words in (shlex.split(line) for line in text.split("\n") if line):
        names = (*(earlier(" ".join(words[:count])) for count in (3, 2, 1)), f"{words[0]} DIRECTORY")
        found[next(name for name in names if name in known)] = words
    return found


def earlier(words: str) -> str:
    """The name of a command before it came below a noun."""
    from plinth_jobs.cli.nouns import RENAMED

    found = (name + words[len(new) :] for name, new in RENAMED.items() if f"{words} ".startswith(f"{new} "))
    return next(found, words)


def with_json() -> dict[str, click.Command]:
    """Every command that has `--json`, by its earlier name."""
    from plinth_jobs.cli import cli

    def walk(command: click.Command, ctx: click.Context, path: str) -> Iterator[tuple[str, click.Command]]:
        if has(command, "--json"):
            yield earlier(path), command
        for name in command.list_commands(ctx) if isinstance(command, click.Group) else ():
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from walk(inner, click.Context(inner, info_name=name, parent=ctx), f"{path} {name}".strip())

    return dict(walk(cli, click.Context(cli, info_name="plinth"), ""))


def has(command: click.Command, option: str) -> bool:
    """True if a command has an option."""
    return any(option in parameter.opts for parameter in command.params)


def shapes(text: str, workspace: Path, out: Path, run: Callable[..., Any]) -> dict[str, Any]:
    """The shape of every answer, by command; of a call that fails, the last line of its error."""
    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow.server import ensure_server

    given, known = _given(workspace, out), with_json()
    if "down" in calls(text):
        ensure_server(Workspace(workspace))  # which it lists
    found = dict[str, Any]()
    for name, words in calls(text).items():
        words = [word.format_map(given) for word in words]
        done = run(workspace, *words, *(("-r", given["recipe"]) if has(known[name], "--recipe") else ()), "--json")
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            found[name] = f"exit code {done.returncode}: {done.stderr.strip()}"
        else:
            # docs/recipe.md has the keys of the schema
            found[name] = shape(dict.fromkeys(answer) if name == "recipe schema" else answer)
    return found


def _given(workspace: Path, out: Path) -> dict[str, object]:
    """Values of the placeholders; writes the files that they name."""
    from plinth.compute.context import Context
    from plinth.storage.parts import read_table
    from plinth.storage.workspace import Workspace
    from tests.jobs.conftest import RECIPE

    ctx = Context(Workspace(workspace))
    documents, verdicts = (ctx.refs.current(f"prose/{kind}").named("part-")[0] for kind in ("documents", "verdicts"))
    rows = read_table(ctx.store, documents, ["id", "uri", "text"]).to_pylist()
    dropped = read_table(ctx.store, verdicts, ["decision"])["decision"].to_pylist().index("drop")
    files = {
        "policy": "policies:\n  default: {rules: []}\n",
        "table": "".join(f"{n * 10**6},{d * 10**7},{1.7 + 400 / (n * 1e6) ** 0.34 + 410 / (d * 1e7) ** 0.28}\n"
                         for n in (1, 3, 9, 27) for d in (2, 6, 18, 54)),
        "gates": (RECIPE.parents[1] / "policies" / "tiny.yaml").read_text().replace("version: 1", "version: 2"),
        "probe": '{"prompt": "The capital of Wales is", "gold": "Cardiff", "wrong": ["Swansea"], "template": "one"}\n',
        "file": "text\n",
    }  # fmt: skip
    files["table"] = "params,tokens,loss\n" + files["table"]
    suffixes = {"policy": ".yaml", "gates": ".yaml", "table": ".csv", "probe": ".jsonl"}
    paths = {name: out / f"{name}{suffixes.get(name, '.txt')}" for name in files}
    for name, path in paths.items():
        path.write_text(files[name])
    return {
        **paths,
        "out": out,
        "recipe": RECIPE,
        "run": ctx.refs.current("run").stats["run_id"],
        "digest": ctx.refs.current("code/shards").digest,
        "uri": rows[50]["uri"],
        "text": " ".join(rows[50]["text"].split()[:40]),
        "document": rows[dropped]["id"].hex(),
    }


_TYPES = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null"}
_NAME = re.compile(r"(?![0-9a-f]{12,}$)[A-Za-z_][A-Za-z0-9_]*")


#: Tables by the cause of lost time, without causes that took none.
_BY_CAUSE = ("rank_us", "percent", "speedups")


def shape(value: Any) -> Any:
    """Keys and types of parsed JSON."""
    if isinstance(value, dict):
        found = dict[str, Any]()
        for key, inner in value.items():
            name = key if _NAME.fullmatch(key) else "*"
            inner = inner or [""] if key == "flags" else inner  # what is wrong with a number is data
            inner = {f"of {cause}": spent for cause, spent in inner.items()} if key in _BY_CAUSE else inner
            found[name] = _merged(found[name], shape(inner)) if name in found else shape(inner)
        return found
    if isinstance(value, list):
        return [reduce(_merged, map(shape, value))] if value else []
    return _TYPES[type(value)]


def paths(found: Any, at: str = "") -> Iterator[str]:
    """A shape as lines `key.key[]: type`."""
    if isinstance(found, dict) and found:
        for name, inner in found.items():
            yield from paths(inner, f"{at}.{name}")
    elif isinstance(found, list) and found:
        yield from paths(found[0], f"{at}[]")
    else:
        yield f"{at}: {found}"


def _merged(one: Any, other: Any) -> Any:
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return _merged_keys(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])] if one and other else one or other
    kinds = {kind for each in (one, other) for kind in (each if isinstance(each, str) else _container(each)).split("|")}
    return "|".join(sorted(kinds))


def _merged_keys(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Keys of two objects; `?` ends those that either lacks."""
    plain = [{name.rstrip("?"): (inner, name.endswith("?")) for name, inner in each.items()} for each in (one, other)]
    found = dict[str, Any]()
    for name in {**plain[0], **plain[1]}:
        have = [each[name] for each in plain if name in each]
        optional = name != "*" and (len(have) < 2 or any(lacking for _, lacking in have))
        found[name + "?" * optional] = reduce(_merged, (inner for inner, _ in have))
    return found


def _container(value: Any) -> str:
    return "object" if isinstance(value, dict) else "list"
