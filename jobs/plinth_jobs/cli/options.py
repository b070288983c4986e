"""Shared command-line options. Each option can be given before or after the command's name."""

from __future__ import annotations

import difflib
import importlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from plinth import processes
from plinth.errors import MissingError

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.recipe.recipe import Recipe
    from plinth.training.config import RunConfig


class PackagedFile(click.Path):
    """Command-line argument: the path of a file, or the name of a packaged recipe or policy."""

    def __init__(self, package: str, *, exists: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=False, exists=exists)
        self.package = package

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        packaged = importlib.import_module(f"plinth_jobs.{self.package}")
        return super().convert(packaged.find(value) if isinstance(value, str) else value, param, ctx)


class WorkspacePlace(click.Path):
    """Command-line argument: a workspace folder, or the URI of a shared workspace, which maps to a local folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "://" in value:
            from plinth.storage.workspace import folder_of

            return folder_of(value)
        return super().convert(value, param, ctx)


class Utf8Text(click.types.StringParamType):
    """Command-line argument with text, which must be valid UTF-8."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("is not valid UTF-8", param, ctx)
        return text


F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """Values of the shared command-line options."""

    workspace: Path
    recipe: Path | None = None
    debug: bool = False
    overrides: tuple[str, ...] = ()

    def recipe_path(self) -> Path:
        """Return the path of the given recipe, or of the recipe last run in the workspace.

        Raises:
            MissingError: neither recipe exists, or the workspace does not exist.
            RequestError: the recipe recorded in the workspace was run by another user.
        """
        from plinth_jobs.recipes import recall

        if self.recipe:
            return self.recipe
        try:
            return recall(self.workspace)
        except MissingError:
            self.context()
            raise

    def load_recipe(self) -> Recipe:
        """Load and validate the recipe. Its annotators are checked only if the recipe has not been run before."""
        from plinth_jobs.recipes import checked, load

        path = self.recipe_path()
        return load(path, "" if self.recipe else checked(self.workspace))

    def context(self, *, waits: bool = False) -> Context:
        """Return a read-only context of the workspace. Long commands show progress on standard error.

        Args:
            waits: True if the command serves or waits for input, so that it shows no progress.

        Raises:
            MissingError: there is no workspace.
        """
        from plinth.compute.context import Context
        from plinth.compute.progress import for_command
        from plinth.storage.workspace import Workspace

        workspace = Workspace(self.workspace)
        if not (workspace.uri or workspace.refs.is_dir()):
            raise MissingError(
                f"no workspace at {self.workspace}",
                remedy="create a workspace with `plinth run -r demo`, or choose an existing workspace with "
                "--workspace DIR",
            )
        progress = for_command()
        if not waits and (call := click.get_current_context(silent=True)):
            call.with_resource(progress.meter(call.command_path, 0))  # progress is shown until the command ends
        return Context(workspace, progress=progress)

    def run_config(self, run: str) -> RunConfig:
        """Return the configuration of a run, named by `latest`, its ID, or a unique prefix of its ID.

        Raises:
            MissingError: the workspace does not exist, or the name matches no run or several runs.
        """
        from plinth_jobs.targets import find_run

        return find_run(self.context(), run)


def _store(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None and option.name and value is not False:
        setattr(ctx.obj, option.name, value)


def shared(function: F) -> F:
    """Add `--workspace` and `--debug` to a command, and pass the settings as its first argument.

    Before the command runs, the workspace is removed from Python's import paths (`processes.shut_out`).
    """

    command = function

    @wraps(command)
    def apart(settings: Settings, *arguments: Any, **options: Any) -> Any:
        processes.shut_out(settings.workspace)
        if settings.overrides:
            from plinth_jobs.recipes import overridden

            settings.recipe = overridden(settings.recipe_path(), settings.overrides, settings.workspace)
        return command(settings, *arguments, **options)

    function = cast(F, apart)
    function = click.option(
        "-w",
        "--workspace",
        type=WorkspacePlace(),
        expose_value=False,
        callback=_store,
        help="Workspace: folder, or s3://bucket/prefix, that stores all state (default: PLINTH_WORKSPACE, or "
        "./workspace).",
    )(function)
    function = click.option(
        "--debug", is_flag=True, expose_value=False, callback=_store, help="Show the traceback of an error."
    )(function)
    return click.pass_obj(function)  # type: ignore[return-value]


set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    expose_value=False,
    callback=_store,
    help="Override a key of the recipe, such as training.seed=2; repeatable.",
)


def recipe_option(function: F) -> F:
    """Add `--recipe` to a command, and `--set`, which overrides single keys of the recipe."""
    return click.option(
        "-r",
        "--recipe",
        type=PackagedFile("recipes"),
        expose_value=False,
        callback=_store,
        help="Recipe: a file, or the name of a packaged recipe. Default: the recipe last run in this workspace.",
    )(set_option(function))


def recipe_argument(function: F) -> F:
    """Add the recipe as an argument of a command, and `--set`, which overrides single keys of the recipe."""
    return click.argument(
        "recipe", metavar="[PATH]", required=False, type=PackagedFile("recipes"), expose_value=False, callback=_store
    )(set_option(function))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

unsigned_option = click.option(
    "--unsigned", is_flag=True, help="Skip the compliance signature. Other machines can then not verify the export."
)


def examples(*lines: str) -> str:
    """Format examples for the end of a command's help text."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def with_shared_options(command: click.Command) -> click.Command:
    """Let a command accept `--workspace` and `--recipe` even if it needs neither, so that one set of options fits every
    command. Added options are not listed in its help."""
    taken = {option for parameter in command.params for option in parameter.opts}
    if any(parameter.name == "recipe" for parameter in command.params):  # also as an argument
        taken.add("--recipe")
    kinds: dict[tuple[str, str], click.ParamType[Any]] = {
        ("-w", "--workspace"): WorkspacePlace(),
        ("-r", "--recipe"): PackagedFile("recipes"),
    }
    for options, kind in kinds.items():
        if not taken & set(options):
            command.params.append(click.Option(options, type=kind, expose_value=False, callback=_store, hidden=True))
    return command


class Further(Mapping[str, click.Command]):
    """Mapping from names to subcommands, which are imported when called."""

    @abstractmethod
    def line(self, name: str) -> str:
        """Return the one-line help of a command."""


class Commands(click.Group):
    """Command group that lists full help lines and suggests the nearest name for a typo."""

    #: Function that finds subcommands outside this group (`nouns.find`).
    further: Further | None = None

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in self.further or () if name not in own)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        found = super().get_command(ctx, name)
        found = found if found or self.further is None else self.further.get(name)
        runs = not isinstance(found, click.Group) or found.invoke_without_command
        return with_shared_options(found) if found and runs else found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands from their help lines, so that no command is imported."""
        lines = self.lines(ctx).items()
        names = [CompletionItem(name, help=line) for name, line in lines if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def paths(self, ctx: click.Context) -> dict[str, str]:
        """Return the names that may be suggested after a typo, mapped to the words of each command."""
        return {name: name for name in self.list_commands(ctx)}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            names, path = self.paths(ctx), ctx.command_path
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean `{path} {names[near[0]]}`?" if near else f"`{path} --help` lists them."
            raise click.UsageError(f"no such command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def lines(self, ctx: click.Context) -> dict[str, str]:
        """Return the one-line help of each command."""
        found = dict[str, str]()
        for name in self.list_commands(ctx):
            if self.further is not None and name in self.further:
                found[name] = self.further.line(name)
            elif command := self.get_command(ctx, name):
                found[name] = command.get_short_help_str(limit=1000)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines(ctx).items()))


def group(cls: type[Commands] = Commands, **settings: Any) -> Callable[[Callable[..., None]], Commands]:
    """Return a decorator like `click.group`, for a group of the class `cls`."""
    return click.group(cls=cls, **settings)
