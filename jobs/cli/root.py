"""The group of commands, imported lazily, and the one place where errors become words and exit codes."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from pathlib import Path

import click

from jobs.cli.options import RecipeFile, Settings

#: Command -> (module in this package, one line of help), in the order of a first day's work.
COMMANDS = {
    "doctor": ("start.doctor", "What this machine has and lacks."),
    "recipe": ("start.recipe", "Check, show or describe a recipe."),
    "plan": ("start.plan", "FLOPs, tokens, time and memory before they are spent."),
    "scale": ("start.scale", "Core hours, bytes and money for a corpus of any size."),
    "run": ("start.run", "Run the line, from sources to release."),
    "up": ("start.run", "Serve the Dagster and MLflow pages."),
    "status": ("start.status", "Every asset: made, stale or missing."),
    "funnel": ("start.status", "What each stage let through, and why not the rest."),
    "policy": ("corpus.policy", "What another policy would change."),
    "ledger": ("corpus.ledger", "One row per document, for any query engine."),
    "slices": ("corpus.slices", "How often learned gates are right, by slice."),
    "report": ("start.status", "Write the page of results."),
    "explain": ("release.explain", "The whole story of one document."),
    "sample": ("corpus.sample", "Documents that a reason removed, to be looked at."),
    "review": ("corpus.sample", "Keep what reviewers say of a sample; sum it up."),
    "label": ("corpus.sample", "Say whether one document was rightly removed."),
    "quarantine": ("corpus.quarantine", "What lists of illegal content stopped; never its text."),
    "source": ("corpus.source", "What a source would be worth, before it is taken."),
    "near": ("corpus.near", "Documents near a text: duplicates, leaks, takedown."),
    "tokenizer": ("tokens.tokenizer", "What words cost in tokens; which tokens are dead; a text in tokens."),
    "mixture": ("tokens.mixture", "What a run sees: shares, epochs, and how near they come."),
    "packing": ("tokens.packing", "What either packing pads and cuts, for any sequence length."),
    "timeline": ("training.timeline", "The page of one run: what happened, why, what it cost."),
    "job": ("training.job", "Where a run runs: submit, status, logs, cancel; what a scheduler is given."),
    "batch": ("training.batch", "The documents of one training step."),
    "replay": ("training.forensics", "Score a step's batch again, document by document."),
    "blame": ("training.forensics", "Which documents and sources a step's loss came from."),
    "checkpoint": ("training.checkpoint", "What a run has committed, by which layout; whether it is intact."),
    "audit": ("training.audit", "Prove that a resumed run equals the uninterrupted one."),
    "verify": ("release.verify", "Walk from a checkpoint or release back to its sources."),
    "approve": ("release.release", "Sign an approval of a candidate."),
    "promote": ("release.release", "Release an approved candidate that passes its gates."),
    "rollback": ("release.release", "Point the release back at the version before."),
    "taint": ("release.release", "Mark something bad and freeze what came of it."),
    "restore": ("release.content", "Write what a digest names into a folder."),
    "arpa": ("corpus.arpa", "An n-gram model of the line, for kenlm and its kin."),
    "export": ("release.content", "DVC pointers; tokens or a model for other programs."),
}

SOFTWARE_ERROR = 70  # as in sysexits.h
INTERRUPTED = 130
BROKEN_PIPE = 141


class Lazy(click.Group):
    """Knows its commands by name and one line; imports a command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"jobs.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f" Did you mean `plinth {near[0]}`?" if near else " `plinth --help` lists them."
            raise click.UsageError(f"no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(
    cls=Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start: `plinth doctor`, then `plinth run -r jobs/recipes/demo.yaml`, then `plinth up`.",
)
@click.option(
    "-w",
    "--workspace",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("workspace"),
    envvar="PLINTH_WORKSPACE",
    show_default="./workspace",
    help="Directory that holds all state (also PLINTH_WORKSPACE).",
)
@click.option(
    "-r",
    "--recipe",
    type=RecipeFile(),
    help="Recipe: a file, or the name of a packaged one; by default the one that this workspace ran last.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="plinth", message="plinth %(version)s")
@click.pass_context
def cli(ctx: click.Context, workspace: Path, recipe: Path | None, debug: bool) -> None:
    """From raw corpus to approved checkpoint.

    Exit codes: 0 done, 2 wrong usage or recipe, 3 something named does not exist, 4 source, 5 storage,
    6 a stage or check failed, 7 training, 8 trust (signature, lineage, gate), 9 registry server,
    70 a defect, 130 interrupted.
    """
    ctx.obj = Settings(workspace=workspace, recipe=recipe, debug=debug)


def main(args: list[str] | None = None) -> None:
    """Entry point of the `plinth` script; ends the process with the exit code."""
    sys.exit(call(sys.argv[1:] if args is None else args))


def call(args: list[str]) -> int:
    """Run one command line and return its exit code; every error is words on stderr."""
    try:
        with cli.make_context("plinth", list(args)) as ctx:
            code = cli.invoke(ctx)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as request:
        return request.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; finished parts are kept, the same command goes on from there", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has left (`plinth explain … | head`): nothing to say, and nothing more to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        return _failed(error, debug="--debug" in args)


def _failed(error: Exception, *, debug: bool) -> int:
    from plinth.errors import PlinthError

    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, PlinthError):
        click.echo(f"plinth: {error}", err=True)
        return error.exit_code
    if not debug:
        line = " ".join(str(error).split())
        click.echo(f"plinth: defect: {type(error).__name__}: {line} (--debug shows where)", err=True)
    return SOFTWARE_ERROR
