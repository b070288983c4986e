"""Options that commands share. Each may stand before or after the command's name."""

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

from plinth import processes
from plinth.errors import MissingError

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.recipe.recipe import Recipe
    from plinth.training.config import RunConfig


class PackagedFile(click.Path):
    """A file by its path, or a packaged one by its name: of `recipes` or `policies`."""

    def __init__(self, package: str, *, exists: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=False, exists=exists)
        self.package = package

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        packaged = importlib.import_module(f"plinth_jobs.{self.package}")
        return super().convert(packaged.find(value) if isinstance(value, str) else value, param, ctx)


class WorkspacePlace(click.Path):
    """A workspace by its folder, or a shared one by its URI: then the folder that this machine has for it."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "://" in value:
            from plinth.storage.workspace import folder_of

            return folder_of(value)
        return super().convert(value, param, ctx)


class Utf8Text(click.types.StringParamType):
    """Text; bytes of the command line that are no UTF-8 are refused, which nothing could tokenise or store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("holds bytes that are no UTF-8", param, ctx)
        return text


F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """Values of the shared options."""

    workspace: Path
    recipe: Path | None = None
    debug: bool = False

    def recipe_path(self) -> Path:
        """The recipe given, or the one that the workspace ran last.

        Raises:
            MissingError: neither exists; says so of the workspace, where that is what is not there.
            RequestError: the one that the workspace names was not run by this user.
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
        """The recipe, validated; the one that the workspace ran last was checked against the annotators then."""
        from plinth_jobs.recipes import checked, load

        path = self.recipe_path()
        return load(path, "" if self.recipe else checked(self.workspace))

    def context(self, *, waits: bool = False) -> Context:
        """A context over the workspace, for reading; a command that takes long shows so on standard error.

        Args:
            waits: the command waits for a person or serves, so that time that passes says nothing.

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
                remedy="`plinth run -r demo` makes one; --workspace DIR names another",
            )
        progress = for_command()
        if not waits and (call := click.get_current_context(silent=True)):
            call.with_resource(progress.meter(call.command_path, 0))  # whatever it does, until it ends
        return Context(workspace, progress=progress)

    def run_config(self, run: str) -> RunConfig:
        """The configuration of a run of the workspace: `latest`, its id, or a unique prefix of it.

        Raises:
            MissingError: there is no workspace; no run, or more than one, of that name.
        """
        from plinth_jobs.targets import find_run

        return find_run(self.context(), run)


def _store(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None and option.name and value is not False:
        setattr(ctx.obj, option.name, value)


def shared(function: F) -> F:
    """`--workspace` and `--debug` after the command's name, and the settings as first argument.

    Before the command runs, its workspace is taken off the search paths (`processes.shut_out`).
    """

    command = function

    @wraps(command)
    def apart(settings: Settings, *arguments: Any, **options: Any) -> Any:
        processes.shut_out(settings.workspace)
        return command(settings, *arguments, **options)

    function = cast(F, apart)
    function = click.option(
        "-w",
        "--workspace",
        type=WorkspacePlace(),
        expose_value=False,
        callback=_store,
        help="Folder, or s3://bucket/prefix, that holds all state (default: ./workspace, or PLINTH_WORKSPACE).",
    )(function)
    function = click.option(
        "--debug", is_flag=True, expose_value=False, callback=_store, help="Show the traceback of an error."
    )(function)
    return click.pass_obj(function)  # type: ignore[return-value]


recipe_option = click.option(
    "-r",
    "--recipe",
    type=PackagedFile("recipes"),
    expose_value=False,
    callback=_store,
    help="Recipe: a file, or the name of a packaged one; by default the one that this workspace ran last.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for programs.")

unsigned_option = click.option(
    "--unsigned", is_flag=True, help="Without the signature of compliance: nobody can prove it elsewhere."
)


def examples(*lines: str) -> str:
    """The closing lines of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class Further(Mapping[str, click.Command]):
    """Commands of a group that are imported when they are called."""

    @abstractmethod
    def line(self, name: str) -> str:
        """The line of help of a command."""


class Commands(click.Group):
    """A group that lists the whole first sentence of each command and answers a mistyped name with the nearest."""

    #: Commands that are no attributes of this group (`nouns.find`).
    further: Further | None = None

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in self.further or () if name not in own)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        found = super().get_command(ctx, name)
        return found if found or self.further is None else self.further.get(name)

    def paths(self, ctx: click.Context) -> dict[str, str]:
        """Names that may be meant by a mistyped one -> the words of each."""
        return {name: name for name in self.list_commands(ctx)}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            names, path = self.paths(ctx), ctx.command_path
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean `{path} {names[near[0]]}`?" if near else f"`{path} --help` lists them."
            raise click.UsageError(f"no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def lines(self, ctx: click.Context) -> dict[str, str]:
        """Line of help of each command."""
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
    """`click.group` for commands below a command."""
    return click.group(cls=cls, **settings)
