"""`plinth recipe check | show | schema`: the recipe, before anything runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from plinth_jobs.cli.options import PackagedFile, Settings, examples, group, json_option, shared

path_argument = click.argument("path", required=False, type=PackagedFile("recipes"))


@group(
    epilog=examples("plinth recipe check demo", "plinth recipe show | less", "plinth recipe schema"),
    short_help="Check, print or describe a recipe.",
)
def recipe() -> None:
    """The recipe: one YAML file that describes a whole run. docs/recipe.md lists every key."""


@recipe.command(epilog=examples("plinth recipe check my.yaml", "plinth recipe check my.yaml --json"))
@path_argument
@shared
@json_option
def check(settings: Settings, path: Path | None, as_json: bool) -> int:
    """Check a recipe; list every problem by file, line and key.

    Without PATH: the recipe that this workspace ran last. Exit code 2 when there are problems.
    """
    from plinth.recipe.advice import notes
    from plinth.recipe.file_checks import list_files, probe_files
    from plinth.recipe.gate_checks import generated_lists
    from plinth.recipe.load import fingerprint, required
    from plinth.recipe.yaml_lines import Position, Problem, dotted
    from plinth_jobs.cli import output
    from plinth_jobs.recipes import check as check_recipe

    path = path or settings.recipe_path()
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
    output.say(f"{path} is right.")
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
@path_argument
@shared
@json_option
def show(settings: Settings, path: Path | None, as_json: bool) -> None:
    """Print the whole recipe: `extends:` resolved, defaults filled in.

    The output is itself a recipe, with the same fingerprint.
    """
    import yaml

    from plinth_jobs.cli import output
    from plinth_jobs.recipes import resolved

    data = resolved(path or settings.recipe_path())
    if as_json:
        output.emit_json(data)
    else:
        output.line(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100), end="")


@recipe.command(epilog=examples("plinth recipe schema > recipe.schema.json"))
@shared
@json_option
def schema(settings: Settings, as_json: bool) -> None:
    """Print the JSON Schema of recipes, for editors that complete and check YAML."""
    from plinth.recipe.reference import schema as schema_of_recipes
    from plinth_jobs.cli import output

    output.emit_json(schema_of_recipes())
