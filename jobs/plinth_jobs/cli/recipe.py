"""`plinth init` and `plinth recipe`: a new project; check, print or describe a recipe."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_argument, shared


@click.command(epilog=examples("plinth init mine --data /data/corpus --licence CC-BY-4.0", "plinth init mine"))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Folder of data; its files become the sources: one bucket per subfolder.",
)
@click.option(
    "--licence", metavar="SPDX", help="License of the sources; if it is not stated, their documents are dropped."
)
@click.option("--owner", default="corpus@example.org", show_default=True, help="E-mail address of the buckets' owner.")
@shared
@json_option
def init(settings: Settings, folder: Path, data: Path | None, licence: str | None, owner: str, as_json: bool) -> None:
    """Create a project in FOLDER: recipe, gate policy, CI workflow, Dagster project.

    The folder's name becomes the name of the recipe. Existing files are never replaced.
    """
    from plinth_jobs import project

    name = project.name_of(folder)
    project.require_own_package(name)
    sources, unread = project.look(data) if data else ([project.EXAMPLE], {})
    written = project.write(folder, project.files(name, sources, licence or project.UNSTATED, owner))
    if as_json:
        found = [one._asdict() for one in sources]
        output.emit_json({"name": name, "files": list(map(str, written)), "sources": found, "not_read": unread})
        return
    for path in written:
        output.say(f"wrote {path}")
    for one in sources if data else ():
        output.say(f"bucket {one.bucket}: {counted(one.files, 'file')} of kind {one.kind} in {one.path}")
    if unread:
        listed = ", ".join(f"{counted(number, 'file')} {suffix}" for suffix, number in unread.items())
        output.say(f"not in the recipe, because no reader knows them: {listed}")
    if dropped := _dropped_licence(folder / "recipe.yaml"):
        output.say(f"note: {dropped}")
    output.say("\nNext:")
    recipe_file, workspace = shlex.quote(f"{folder}/recipe.yaml"), shlex.quote(f"{folder}/workspace")
    at = f"-w {workspace} -r {recipe_file}"
    output.facts(
        {
            f"plinth recipe check {recipe_file}": "every problem of the recipe",
            f"plinth run {at} --dry-run": "what would run, and its expected cost",
            f"plinth run {at} --select '*/curated'": "curated text",
        }
    )


def _dropped_licence(path: Path) -> str:
    """Return a sentence about the license of a new recipe if the license gate drops its documents, or nothing."""
    from plinth.corpus.annotate.licence import judge
    from plinth_jobs import recipes

    corpus = recipes.load(path).corpus
    licence = next(source.licence for bucket in corpus.buckets.values() for source in bucket.sources)
    if judge(licence, tuple(sorted(corpus.permitted_licences)))[1]:
        return ""
    return f"{licence} is not in `corpus.permitted_licences`: its documents are dropped until you permit it there"


@group(
    epilog=examples("plinth recipe check demo", "plinth recipe show | less", "plinth recipe schema"),
    short_help="Check, print or describe a recipe.",
)
def recipe() -> None:
    """Check, print or describe a recipe: one YAML file that describes a run. docs/recipe.md lists every key."""


@recipe.command(epilog=examples("plinth recipe check my.yaml", "plinth recipe check my.yaml --json"))
@recipe_argument
@shared
@json_option
def check(settings: Settings, as_json: bool) -> int:
    """Check a recipe; list every problem by file, line and key.

    PATH defaults to the recipe last run in this workspace. The exit code is 2 if there are problems.
    """
    from plinth.recipe.column_checks import list_files, notes, probe_files
    from plinth.recipe.extension_checks import generated_lists
    from plinth.recipe.load import fingerprint, required
    from plinth.recipe.yaml_lines import Position, Problem, dotted
    from plinth_jobs.recipes import check as check_recipe

    path = settings.recipe_path()
    checked, problems = check_recipe(path)
    if checked is not None:
        generated = generated_lists(checked, settings.workspace / "input")
        read = list_files(checked, settings.workspace / "input")
        faults = [*generated, *probe_files(checked, settings.workspace / "input"), *read]
        problems = [Problem(Position(str(path), 1), dotted(key), what, hint) for key, what, hint in faults]
    if as_json:
        found = [
            {**asdict(problem.mark), "key": problem.key, "message": problem.message, "hint": problem.hint}
            for problem in problems
        ]
        identity = fingerprint(checked) if checked else None
        advice = notes(checked) if checked else []
        output.emit_json(
            {"path": str(path), "right": not problems, "fingerprint": identity, "problems": found, "notes": advice}
        )
        return 2 if problems else 0
    loaded = required(checked, problems, path)
    output.say(f"{path} is valid.")
    facts = {
        "name": loaded.name,
        "buckets": ", ".join(loaded.corpus.buckets),
        "annotators": ", ".join(loaded.corpus.annotate),
    }
    if loaded.mixture is not None:
        facts["tokens"] = f"{loaded.mixture.total_tokens:,}"
        facts["phases"] = ", ".join(f"{phase.name} {phase.fraction:.0%}" for phase in loaded.mixture.phases)
    output.facts({**facts, "fingerprint": fingerprint(loaded)})
    for note in notes(loaded):
        output.say(f"note: {output.plain_markup(note)}")
    return 0


@recipe.command(epilog=examples("plinth recipe show my.yaml", "plinth recipe show my.yaml --json | jq .mixture"))
@recipe_argument
@shared
@json_option
def show(settings: Settings, as_json: bool) -> None:
    """Print the complete recipe, with `extends:` resolved and defaults filled in.

    The output is itself a recipe, with the same fingerprint.
    """
    import yaml

    from plinth_jobs.recipes import resolved

    data = resolved(settings.recipe_path())
    if as_json:
        output.emit_json(data)
    else:
        output.line(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100), end="")


@recipe.command(epilog=examples("plinth recipe schema > recipe.schema.json"))
@shared
@json_option
def schema(settings: Settings, as_json: bool) -> None:
    """Print the JSON Schema of recipes, for completion and validation in editors."""
    from plinth.recipe.reference import schema as schema_of_recipes

    output.emit_json(schema_of_recipes())
