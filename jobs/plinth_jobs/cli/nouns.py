"""Command registry: a table of core commands, and entry points of installed packages.

A command is imported when it is called. Entry points use the group `plinth.commands`. The name of an entry point has
the command's words joined by dots (`corpus.quarantine`); its value is the `module:attribute` of a click command.
Plinth's own extension packages and user packages add commands in the same way, but cannot replace a core command.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import click

from plinth.entry_points import OWN, Entry, absent, entries, not_here
from plinth.errors import ExtensionError
from plinth_jobs.cli.options import Commands, Further

GROUP = "plinth.commands"

#: Section of `plinth --help` -> command -> (module in this package, one line of help). A noun without a module is not
#: a command itself. GROUP as module marks a noun added by an extension package; it is listed without an import.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Commands": {
        "doctor": ("doctor", "Check this machine: packages, memory, GPU, ports."),
        "qualify": (GROUP, "Measure what this machine reaches in training."),
        "init": ("recipe", "Create a project: recipe, policy, CI workflow, Dagster project."),
        "recipe": ("recipe", "Check, print or describe a recipe."),
        "run": ("run", "Run the pipeline, from sources to release; inspect training."),
        "status": ("status", "List every asset: up to date, stale or never materialized."),
        "report": ("status", "Write the results page of a candidate, or the index of pages."),
        "explain": ("provenance", "Trace one document through every stage."),
        "approve": ("release", "Sign an approval of a candidate."),
        "verify": ("provenance", "Verify every link from a model or asset to its sources."),
        "up": ("run", "Serve Dagster, MLflow and the pages of the workspace."),
        "down": ("run", "Stop the servers that Plinth started."),
        "mcp": (GROUP, "Serve read-only tools to agents (Model Context Protocol)."),
    },
    "Command groups": {
        "corpus": ("", "Text: funnel, samples, labels, policies, takedowns."),
        "tokens": ("", "Tokenizer, packing and mixture."),
        "model": ("", "Quality of a checkpoint: scores, probes, comparisons."),
        "experiment": (GROUP, "Compare arms of a recipe over seeds; fit scaling laws."),
        "release": ("", "Promote, roll back, trace; taints, consumers, documents."),
        "ops": ("", "Metrics, alerts, costs, backups, incidents, accounts."),
        "keys": ("keys", "Manage the root of trust: keys, roles, signers."),
        "gates": ("gates", "Sign, show or check the gate policy of a release."),
        "export": ("export", "Export DVC pointers, text, tokens or a model; restore files."),
    },
}

#: Noun -> subcommand -> (module in this package, one line of help).
BELOW: dict[str, dict[str, tuple[str, str]]] = {
    "corpus": {
        "funnel": ("corpus", "Count documents and bytes through every stage, with removal reasons."),
        "card": ("corpus", "Print the data card: text by bucket, and its filters."),
        "ledger": ("corpus", "Export one row per document for any query engine."),
        "sample": ("sample", "Sample documents removed for a reason."),
        "review": ("sample", "Label a sample, or summarize all labels."),
        "label": ("sample", "Label one removed document good or bad."),
        "near": ("corpus", "Find documents similar to a text, such as its copies."),
        "slices": ("policies", "Show the error rates of learned gates by slice."),
        "policy": ("policies", "Preview another policy; show what learned rules remove."),
        "limits": ("corpus", "Fit each language's filter thresholds and stop words to a bucket."),
        "arpa": ("corpus", "Export an n-gram model as ARPA."),
    },
    "tokens": {
        "tokenizer": ("tokens", "Show the tokenizer's audit, or the tokens of a text."),
        "packing": ("tokens", "Compare packings by their padded, masked, dropped and cut tokens."),
        "mixture": ("tokens", "Show the shares and epochs of every stream by phase."),
    },
    "run": {
        "history": ("run_facts", "List all runs with state, loss and goodput."),
        "show": ("run_facts", "Show the figures, metrics and last events of a run."),
        "batch": ("steps", "List the documents of a training step."),
        "timeline": ("runs", "Write the page of a run: metrics, events, cost."),
        "goodput": ("runs", "Show where every rank-second of a run went."),
        "replay": ("steps", "Rescore a step's batch, document by document."),
        "blame": ("steps", "Attribute the loss of a step to documents and sources."),
        "checkpoint": ("steps", "List and verify the checkpoints of a run."),
        "profile": ("runs", "Profile chosen steps of a running job, for Perfetto."),
        "audit": ("runs", "Prove that a resumed run equals the uninterrupted one."),
        "upgrade": ("upgrade", "Continue a run with other code, once it repeats the last steps."),
        "contract": ("contract", "Sign or show what a run may spend and must reach."),
        "job": ("runs", "Submit, inspect or cancel the job of a run."),
    },
    "model": {
        "evaluation": ("model", "Show bits per byte by slice, the worst documents and spans."),
        "probes": ("model", "List probes and their scores, explain an item, check a file."),
        "generate": ("generate", "Sample text from a model after prompts."),
        "compare": ("model", "Compare two models, with intervals; write a page."),
    },
    "release": {
        "promote": ("release", "Release an approved candidate that passes its gates."),
        "canary": ("release", "Compare the canary with the champion; withdraw the canary."),
        "rollback": ("release", "Roll back to the most recent good version."),
        "mirror": ("release", "Sync MLflow aliases from the signed release history."),
        "taint": ("taint", "Taint data or a model; freeze everything derived from it."),
        "consumer": ("taint", "Register services and models that use a release; show their feed."),
        "log": ("release", "List all decisions, including refused ones; verify the log."),
        "anchor": ("release", "Record the signed head of the log in a transparency log (Rekor)."),
        "impact": ("taint", "List everything derived from an asset, source, document or commit."),
    },
    "ops": {
        "people": ("gates", "Enable MLflow authentication; manage accounts."),
    },
    "report": {
        "pages": ("status", "Write the index of all pages: state, runs, links."),
    },
    "export": {
        "tokens": ("export", "Export the tokens of a bucket or run for another trainer."),
        "model": ("export", "Export a signed release in Hugging Face's layout."),
        "restore": ("export", "Write the files of a manifest to a folder."),
    },
}

#: Core commands by their words.
COMMANDS = {
    **{name: row for commands in SECTIONS.values() for name, row in commands.items()},
    **{f"{noun} {name}": row for noun, commands in BELOW.items() for name, row in commands.items()},
}

#: Noun -> commands that were top-level commands in earlier versions. Their old names still work.
_RENAMED = {
    "corpus": "funnel card ledger sample review label near trace takedown quarantine slices policy limits source arpa "
    "scale",
    "tokens": "tokenizer packing mixture",
    "run": "batch timeline goodput roofline replay blame checkpoint profile audit job plan federated",
    "model": "evaluation probes fairness exposure generate drift compare",
    "experiment": "scaling",
    "release": "promote canary rollback mirror papers provider taint consumer log impact",
    "ops": "metrics alerts dashboards retrospective backup gc gameday check sli cost incident people",
    "report": "pages",
    "export": "restore",
}
#: Earlier name -> current words.
RENAMED = {name: f"{noun} {name}" for noun, names in _RENAMED.items() for name in names.split()}


class Below(Further):
    """Subcommands of a command. If `words` is empty, they are the commands of `plinth` itself."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __contains__(self, name: object) -> bool:
        words = f"{self.words} {name}".strip()
        return words in COMMANDS or name in below(self.words)  # read package metadata only if the table lacks it

    def __iter__(self) -> Iterator[str]:
        return iter(below(self.words))

    def __len__(self) -> int:
        return len(below(self.words))

    def __getitem__(self, name: str) -> click.Command:
        words = f"{self.words} {name}".strip()
        if found := find(words):
            return found
        for missing in (words, self.words):
            if package := absent(GROUP).get(missing.replace(" ", ".")):
                raise not_here(f"`plinth {missing}`", package)
        raise KeyError(name)

    def line(self, name: str) -> str:
        words = f"{self.words} {name}".strip()
        if words in COMMANDS:
            return COMMANDS[words][1]
        try:
            return self[name].get_short_help_str(limit=1000)
        except Exception as error:  # a broken package must not break `--help`
            return f"unavailable: {' '.join(str(error).split())}"


def find(words: str) -> click.Command | None:
    """Import the command or group with these words, such as `run batch`. Return None if there is none.

    Raises:
        ExtensionError: the extension command cannot be loaded.
    """
    own: click.Command | None = None
    module, line = COMMANDS.get(words, ("", ""))
    if module and module != GROUP:
        own = getattr(importlib.import_module(f"plinth_jobs.cli.{module}"), words.rpartition(" ")[2])
    elif module == GROUP or not line:
        own = load(entry) if (entry := installed().get(words)) else None
    if isinstance(own, Commands):
        own.further = Below(words)
    elif isinstance(own, click.Group) and below(words):
        own = _and_below(words, own, own.callback, invoke_without_command=own.invoke_without_command)
    elif own and words in BELOW:
        own = _and_below(words, own, _unless_below(own), invoke_without_command=True)
    elif own is None and ((line and not module) or below(words)):
        own = Commands(words.rpartition(" ")[2], help=line, epilog=f"`plinth {words} COMMAND --help` shows examples.")
        own.further = Below(words)
    return own


def below(words: str) -> list[str]:
    """Return the names of a command's direct subcommands: core commands first, then commands from packages."""
    start = f"{words} ".lstrip()
    named = (*(each for each, (module, _) in COMMANDS.items() if module != GROUP), *sorted(installed()))
    return list(dict.fromkeys(each[len(start) :].split()[0] for each in named if each.startswith(start)))


def installed() -> dict[str, Entry]:
    """Return the commands of installed packages by their words, without commands that have the words of a built-in
    command."""
    found = dict[str, Entry]()
    for entry in sorted(_entries(), key=lambda entry: entry.distribution != OWN):
        words = entry.name.replace(".", " ")
        if entry.distribution == OWN or not _is_taken(words):
            found.setdefault(words, entry)
    return found


def load(entry: Entry) -> click.Command:
    """Import the command of an entry point.

    Raises:
        ExtensionError: the command cannot be imported, is not a click command, or has a name that is already in use.
    """
    words, problem = entry.name.replace(".", " "), ""
    module, _, attribute = entry.value.partition(":")
    claims = [other for other in _entries() if other.name == entry.name]
    if entry.distribution != OWN and _is_taken(words):
        problem = "is already a command of Plinth"
    elif " " in words and not isinstance(find(words.rpartition(" ")[0]), click.Group):
        problem = "is under a command that has no subcommands"
    elif entry.distribution != OWN and len(claims) > 1:
        problem = f"exists {len(claims)} times: {', '.join(f'{one.package} ({one.value})' for one in claims)}"
    else:
        try:
            command = attrgetter(attribute)(importlib.import_module(module))
        except (Exception, SystemExit) as error:
            if entry.distribution == OWN:
                raise
            problem = f"cannot be imported: {type(error).__name__}: {error}"
        else:
            if isinstance(command, click.Command):
                return command
            problem = f"is a {type(command).__name__}, not a click command"
    raise ExtensionError(
        f"`plinth {words}` of {entry.package} {problem}",
        found=entry.value,
        expected="a click command with a unique name",
        remedy=f"repair or uninstall {entry.distribution}; see docs/extending.md",
    )


def _entries() -> list[Entry]:
    return [entry for entry in entries() if entry.group == GROUP]


def _is_taken(words: str) -> bool:
    """Return True if these words already name a built-in command."""
    own = {entry.name.replace(".", " ") for entry in _entries() if entry.distribution == OWN}
    return words in COMMANDS or words in RENAMED or words in own


def _and_below(words: str, own: click.Command, callback: Any, **settings: Any) -> Commands:
    """Turn a command into a command group that also runs without a subcommand."""
    found = Commands(
        own.name,
        own.commands if isinstance(own, click.Group) else None,
        callback=callback,
        context_settings=own.context_settings,
        epilog=own.epilog,
        help=own.help,
        params=own.params,
        **settings,
    )
    found.further = Below(words)
    return found


def _unless_below(own: click.Command) -> Any:
    """Call a command unless a subcommand is called. If a subcommand is called, reject the command's own options."""

    @click.pass_context
    def call(ctx: click.Context, *args: Any, **options: Any) -> Any:
        if ctx.invoked_subcommand is None:
            return own.callback(*args, **options) if own.callback else None
        given = click.core.ParameterSource.COMMANDLINE
        for option in own.params:
            if option.name in ctx.params and ctx.get_parameter_source(option.name) is given:
                raise click.UsageError(
                    f"{max(option.opts, key=len)} is an option of `{ctx.command_path}`, not of its subcommands", ctx
                )
        return None

    return call
