"""Command `plinth run federated`. The other modules of the package are imported when the command runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth_extras.federated.exchange import Exchange, Federated, Round


@group(epilog=examples("plinth run federated coordinate -r oslo.yaml", "plinth run federated rounds -r oslo.yaml"))
def federated() -> None:
    """Coordinate and list federated rounds of the sites in a recipe (training.federated)."""


@federated.command(epilog=examples("plinth run federated coordinate -r oslo.yaml --wait 1800"))
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    help="Seconds to wait for other sites after the first site has sent its weights.",
)
@recipe_option
@shared
def coordinate(settings: Settings, wait: float) -> None:
    """Average the weights of the sites round by round, until their runs have ended.

    Use the recipe of any site. All state is in the exchange, so the command can be interrupted and restarted. Sites
    that are late or rejected are listed and are not part of the mean.
    """
    from plinth_extras.federated.coordinator import Coordinator
    from plinth_extras.federated.coordinator import coordinate as until_all_end
    from plinth_jobs.cli import output

    params, exchange = _federation(settings)
    until_all_end(Coordinator(exchange, params), wait, lambda made: output.say(_words(made)))


@federated.command(epilog=examples("plinth run federated rounds -r oslo.yaml --json"))
@recipe_option
@shared
@json_option
def rounds(settings: Settings, as_json: bool) -> None:
    """Verify and list the committed rounds, with accepted and missing sites, and rejected sites with the reason."""
    from plinth_jobs.cli import output

    _, exchange = _federation(settings)
    made = [exchange.round(number)[0] for number in range(exchange.newest() + 1)]
    if as_json:
        output.emit_json([one.model_dump(mode="json") for one in made])
        return
    for one in made:
        output.say(_words(one))


def _federation(settings: Settings) -> tuple[Federated, Exchange]:
    """Return the federation settings of the recipe, and the exchange with the trust settings of this workspace.

    Raises:
        RecipeError: the recipe has no federation.
    """
    from plinth.errors import RecipeError
    from plinth.sections import of
    from plinth.storage.workspace import Workspace
    from plinth.trust.root import Trust
    from plinth_extras.federated.exchange import Exchange, Federated

    recipe = settings.load_recipe()
    params = of(recipe.training, "federated", Federated)
    if params is None:
        raise RecipeError(f"recipe {recipe.name} has no federation", expected="training.federated")
    return params, Exchange(params.exchange, Trust.of(Workspace(settings.workspace)))


def _words(made: Round) -> str:
    words = f"round {made.round}: {', '.join(made.taken)}"
    words += f"; missing {', '.join(made.missing)}" if made.missing else ""
    words += "".join(f"; refused {site}: {reason}" for site, reason in made.refused.items())
    return f"{words}; common weights {made.common.sha256[:12]}"
