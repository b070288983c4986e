"""The command line: `plinth COMMAND`, or `plinth NOUN COMMAND`. A module holds one or a few commands. This
file defines `plinth` itself and turns errors into messages and exit codes.

    nouns     the table of core commands, and commands that installed packages add
    options   --workspace, --recipe, --json, and the `Settings` object with their values
    output    tables for people, JSON for programs

    doctor      `doctor`, one function per check
    run         `recipe`, `run`, `up`, `down`, `status`, `report`, `report pages`
    corpus      `corpus funnel | card | ledger | near | limits | arpa`
    policies    `corpus policy | slices`: what policies and learned gates remove
    sample      `corpus sample | review | label`: human review of removed documents
    tokens      `tokens tokenizer | mixture | packing`
    runs        `run job | timeline | goodput | profile | audit`: a training run
    upgrade     `run upgrade`: continue a run with other code
    contract    `run contract`: what a run may spend and must reach
    run_facts   `run history | show`: runs and their metrics as tables
    steps       `run batch | replay | blame | checkpoint`: steps of a training run
    model       `model evaluation | probes | compare`: measured quality
    generate    `model generate`: sample from a model given by any of its names
    provenance  `explain`, `verify`: where a document, a model or an asset comes from
    release     `approve`, `release promote | rollback | mirror | canary | log`: decisions
    taint       `release taint | impact | consumer`: taints, downstream artifacts, consumers
    export      `export pointers | restore | tokens | model`
    gates       `gates`: the signed gate policy and waivers; `ops people`: MLflow accounts
    keys        `keys`: the root of trust and the signers of each role

Importing this package imports only click; a command imports heavy packages inside its function. The help of each
command ends with an example. Read-only commands take `--json`.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from pathlib import Path

import click
from click.shell_completion import shell_complete

from plinth import private
from plinth.errors import EXTRAS, PlinthError, not_installed
from plinth.text import visible
from plinth_jobs.cli.nouns import COMMANDS, RENAMED, SECTIONS, Below
from plinth_jobs.cli.options import Commands, PackagedFile, Settings, WorkspacePlace, examples

SOFTWARE_ERROR = 70  # as in sysexits.h
INTERRUPTED = 130
BROKEN_PIPE = 141
#: Variable that a shell sets to get completions, or its script: `eval "$(_PLINTH_COMPLETE=bash_source plinth)"`.
COMPLETION = "_PLINTH_COMPLETE"


class Plinth(Commands):
    """Top-level command group: commands by section, with earlier command names as aliases."""

    further = Below("")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words := RENAMED.get(args[0]):
            click.echo(f"plinth {args[0]} is now: plinth {words}", err=True)
            return super().resolve_command(ctx, [*words.split(), *args[1:]])
        return super().resolve_command(ctx, args)

    def paths(self, ctx: click.Context) -> dict[str, str]:
        return super().paths(ctx) | RENAMED

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = self.lines(ctx)
        sections = {title: [name for name in commands if name in lines] for title, commands in SECTIONS.items()}
        sections["Other packages"] = [name for name in lines if name not in COMMANDS]
        for title, names in sections.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(max(map(len, lines))), lines[name]) for name in names])


@click.command(
    cls=Plinth,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "plinth doctor",
        "plinth run -r demo",
        "plinth corpus funnel",
        "plinth model compare champion latest",
        "plinth up",
    ),
)
@click.option(
    "-w",
    "--workspace",
    type=WorkspacePlace(),
    default=Path("workspace"),
    envvar="PLINTH_WORKSPACE",
    show_default="./workspace",
    help="Workspace: folder, or s3://bucket/prefix, that stores all state (default: PLINTH_WORKSPACE, or ./workspace).",
)
@click.option(
    "-r",
    "--recipe",
    type=PackagedFile("recipes"),
    help="Recipe: a file, or the name of a packaged recipe. Default: the recipe last run in this workspace.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="plinth", message="plinth %(version)s")
@click.pass_context
def cli(ctx: click.Context, workspace: Path, recipe: Path | None, debug: bool) -> None:
    """From raw corpus to approved checkpoint.

    Exit codes: 0 success, 1 doctor or a drill found problems, 2 invalid usage or recipe, 3 not found, 4 source,
    5 storage, 6 stage or check failed, 7 training, 8 trust (signature, lineage, gate), 9 registry server,
    70 internal error, 130 interrupted.
    """
    ctx.obj = Settings(workspace=workspace, recipe=recipe, debug=debug)


def main(args: list[str] | None = None) -> None:
    """Run the `plinth` script and exit with its code."""
    gc.set_threshold(50_000, 10, 10)  # the default of 700 spends a fifth of import time on collections
    try:
        private.apply_mask()
    except PlinthError as error:
        sys.exit(_failed(error, debug=False))
    if instruction := os.environ.get(COMPLETION):  # set by the script that a shell sources
        sys.exit(shell_complete(cli, {}, "plinth", COMPLETION, instruction))
    code = call(sys.argv[1:] if args is None else args)
    gc.freeze()  # saves a second of interpreter shutdown after a run
    sys.exit(code)


def call(args: list[str]) -> int:
    """Run one command line and return its exit code. Errors are printed on stderr."""
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
        click.echo("interrupted; finished work is kept, and the same command resumes from it", err=True)
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
        click.echo(
            visible(f"plinth: internal error: {type(error).__name__}: {line} (--debug shows the traceback)"), err=True
        )
    return SOFTWARE_ERROR
