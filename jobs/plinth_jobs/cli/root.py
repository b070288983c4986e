"""The group of commands, imported lazily, and the one place that turns errors into messages and exit codes."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from pathlib import Path

import click

from plinth import private
from plinth.errors import EXTRAS, PlinthError, not_installed
from plinth.text.terminal import visible
from plinth_jobs.cli.options import Commands, PackagedFile, Settings, WorkspacePlace

#: Section of the help, which is a folder of this package -> (title, command -> (module in it, one line of help)).
SECTIONS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "start": (
        "Set up and run",
        {
            "doctor": ("doctor", "Check this machine: packages, memory, GPU, ports."),
            "check": ("check", "Evaluate a checklist of this workspace, with evidence."),
            "recipe": ("recipe", "Check, print or describe a recipe."),
            "gameday": ("gameday", "Play a fault in a rehearsal; verdict, signed record, page."),
            "scale": ("scale", "Estimate a corpus of any size: core hours, bytes, money."),
            "plan": ("plan", "Estimate a training run: parameters, FLOPs, time, memory."),
            "run": ("run", "Run the pipeline, from sources to release."),
            "cost": ("cost", "Show what was spent, on what, by whom; set limits."),
            "gc": ("retention", "Show what storage costs by age; delete what nothing needs."),
            "backup": ("backup", "Back up a workspace, restore one, prove that it can be."),
            "up": ("run", "Serve Dagster, MLflow and the pages of the workspace."),
            "pages": ("status", "Write the index of all pages: state, runs, links."),
            "down": ("run", "Stop the servers that Plinth has started."),
            "status": ("status", "List every asset: up to date, stale or not made."),
            "report": ("status", "Write the results page of a candidate."),
        },
    ),
    "corpus": (
        "Corpus",
        {
            "source": ("source", "Estimate the value of a new source from a sample."),
            "quarantine": ("quarantine", "List hits on lists of illegal content, without their text."),
            "arpa": ("arpa", "Export an n-gram model as ARPA."),
            "slices": ("slices", "Show the error rates of learned gates by slice."),
            "policy": ("policy", "Compare another policy; show what learned rules remove."),
            "limits": ("limits", "Fit limits and stop words by language from a bucket."),
            "near": ("near", "Find documents similar to a text: copies, leaks, takedowns."),
            "funnel": ("funnel", "Count documents and bytes through every stage, with reasons."),
            "card": ("card", "Print the data card: text by bucket, its screening."),
            "sample": ("sample", "Draw documents that a reason removed."),
            "review": ("sample", "Label a sample, or summarise all labels."),
            "label": ("sample", "Label one removed document good or bad."),
            "explain": ("explain", "Trace one document through every stage."),
            "trace": ("trace", "Find a text verbatim in the data, and the steps that saw it."),
            "ledger": ("ledger", "Export one row per document for any query engine."),
            "takedown": ("takedown", "Find everything that holds a text; remove it and prove it."),
        },
    ),
    "tokens": (
        "Tokens and mixture",
        {
            "tokenizer": ("tokenizer", "Show the tokenizer's audit, or the tokens of a text."),
            "packing": ("packing", "Compare packings: padded, masked, dropped and cut tokens."),
            "mixture": ("mixture", "Show the shares and epochs of every stream by phase."),
        },
    ),
    "training": (
        "Training",
        {
            "job": ("job", "Submit, inspect or cancel the job of a run."),
            "timeline": ("timeline", "Write the page of a run: metrics, events, cost."),
            "goodput": ("goodput", "Show where every rank-second of a run went."),
            "sli": ("sli", "Show service-level indicators and error budgets of all runs."),
            "roofline": ("roofline", "Name what bounds a run's steps, and what would help."),
            "batch": ("batch", "List the documents of a training step."),
            "replay": ("forensics", "Score a step's batch again, document by document."),
            "blame": ("forensics", "Attribute the loss of a step to documents and sources."),
            "checkpoint": ("checkpoint", "List and verify the checkpoints of a run."),
            "federated": ("federated", "Average the weights of sites that share no text."),
            "profile": ("profile", "Trace chosen steps of a run under way, for Perfetto."),
            "audit": ("audit", "Prove that a resumed run equals the uninterrupted one."),
        },
    ),
    "evaluation": (
        "Evaluation",
        {
            "evaluation": ("evaluation", "Show bits per byte by slice, the worst documents and spans."),
            "probes": ("probes", "List probes and their scores, explain an item, check a file."),
            "fairness": ("fairness", "Show differences between groups, toxicity, and their drift."),
            "exposure": ("exposure", "Show the canaries' exposure at the checkpoints of a run."),
            "generate": ("generate", "Write what a model says after prompts."),
            "drift": ("drift", "Show text on which the champion is no longer what it was."),
            "compare": ("compare", "Compare two models, with intervals; write the page."),
        },
    ),
    "experiment": (
        "Experiments",
        {
            "experiment": ("experiment", "Compare arms of a recipe over seeds, with intervals."),
            "scaling": ("scaling", "Fit a ladder of runs; foretell a larger one."),
        },
    ),
    "operation": (
        "Operation",
        {
            "metrics": ("metrics", "Serve metrics to Prometheus, or write them into a file."),
            "alerts": ("alerts", "Write rules and routes of alerts; silence a planned stop."),
            "dashboards": ("dashboards", "Write Grafana's dashboards."),
            "retrospective": ("retrospective", "Write the page of the last week or month."),
        },
    ),
    "release": (
        "Release and provenance",
        {
            "keys": ("keys", "Make and change the root of trust: who signs as what."),
            "gates": ("gates", "Sign, show or check the policy that a release must pass."),
            "people": ("people", "Let MLflow ask for a login; make accounts."),
            "approve": ("release", "Sign an approval of a candidate."),
            "promote": ("release", "Release an approved candidate that passes its gates."),
            "canary": ("canary", "Show how the canary compares; give it back."),
            "rollback": ("release", "Return the release to the last good version."),
            "mirror": ("release", "Make MLflow show what the signed history says."),
            "verify": ("verify", "Verify every link from a model or asset to its sources."),
            "papers": ("papers", "Show, write or sign the papers of a candidate or release."),
            "provider": ("papers", "Sign what the provider of a release states of itself."),
            "taint": ("taint", "Mark data or a model unfit; freeze all derived from it."),
            "incident": ("incident", "Freeze promotions while an incident is open; its facts."),
            "consumer": ("consumer", "Enrol services and models that use a release; their feed."),
            "log": ("log", "List every decision and every refused one; prove the list."),
            "impact": ("impact", "List all that came of a digest, source, document or commit."),
            "restore": ("content", "Write the files of a manifest into a folder."),
            "export": ("content", "Export DVC pointers, text, tokens or a model."),
        },
    ),
}

#: Command -> (module in this package, one line of help), in the order of the pipeline.
COMMANDS = {
    name: (f"{folder}.{module}", line)
    for folder, (_, commands) in SECTIONS.items()
    for name, (module, line) in commands.items()
}

SOFTWARE_ERROR = 70  # as in sysexits.h
INTERRUPTED = 130
BROKEN_PIPE = 141


class Lazy(Commands):
    """Lists commands without importing them; imports a command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"plinth_jobs.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, commands in SECTIONS.values():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), line) for name, (_, line) in commands.items()])


@click.command(
    cls=Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start: `plinth doctor`, then `plinth run -r demo`, then `plinth up`.",
)
@click.option(
    "-w",
    "--workspace",
    type=WorkspacePlace(),
    default=Path("workspace"),
    envvar="PLINTH_WORKSPACE",
    show_default="./workspace",
    help="Folder, or s3://bucket/prefix, that holds all state (also PLINTH_WORKSPACE).",
)
@click.option(
    "-r",
    "--recipe",
    type=PackagedFile("recipes"),
    help="Recipe: a file, or the name of a packaged one; by default the one that this workspace ran last.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="plinth", message="plinth %(version)s")
@click.pass_context
def cli(ctx: click.Context, workspace: Path, recipe: Path | None, debug: bool) -> None:
    """From raw corpus to approved checkpoint.

    Exit codes: 0 done, 1 doctor or a drill found faults, 2 wrong usage or recipe, 3 not found, 4 source, 5 storage,
    6 a stage or check failed, 7 training, 8 trust (signature, lineage, gate), 9 registry server, 70 a defect,
    130 interrupted.
    """
    ctx.obj = Settings(workspace=workspace, recipe=recipe, debug=debug)


def main(args: list[str] | None = None) -> None:
    """Entry point of the `plinth` script; ends the process with the exit code."""
    gc.set_threshold(50_000, 10, 10)  # at Python's 700, a fifth of the time that imports take is collections
    try:
        private.apply_mask()
    except PlinthError as error:
        sys.exit(_failed(error, debug=False))
    code = call(sys.argv[1:] if args is None else args)
    gc.freeze()  # else the end of the interpreter walks through all that was imported: a second after a run
    sys.exit(code)


def call(args: list[str]) -> int:
    """Run one command line and return its exit code; every error is a message on stderr."""
    try:
        with cli.make_context("plinth", list(args)) as ctx:
            code = cli.invoke(ctx)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as request:
        return request.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        click.echo(visible(shown.getvalue()), err=True, nl=False)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; finished parts are kept, the same command continues from them", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe (`plinth explain … | head`): nothing is left to print or flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        return _failed(error, debug="--debug" in args)


def _failed(error: Exception, *, debug: bool) -> int:
    if isinstance(error, ModuleNotFoundError) and (top := (error.name or "").partition(".")[0]) in EXTRAS:
        error = not_installed(top)
    if debug:
        import traceback

        click.echo(visible("".join(traceback.format_exception(error))), err=True, nl=False)
    if isinstance(error, PlinthError):
        click.echo(visible(f"plinth: {error}"), err=True)
        return error.exit_code
    if not debug:
        line = " ".join(str(error).split())
        click.echo(visible(f"plinth: defect: {type(error).__name__}: {line} (--debug shows where)"), err=True)
    return SOFTWARE_ERROR
