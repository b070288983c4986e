"""The corpus page of one workspace, and one request to it: its person, form, and the rendering of its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.recipe.recipe import Recipe
from plinth.recipe.yaml_lines import files as recipe_files
from plinth.report.page import template
from plinth.storage import running
from plinth.text import visible
from plinth_extras.corpus_page.access import Access, Person
from plinth_extras.corpus_page.ledger import LedgerReader, OpenLedger, is_stale
from plinth_extras.corpus_page.view import number
from plinth_jobs.recipes import FOLDER, load

PACKAGE: Final = "plinth_extras.corpus_page"
#: Colors of cut spans.
TONES: Final = 6


@dataclass
class Call:
    """One request: its person, its workspace and its form."""

    site: CorpusPage
    request: Request
    person: Person
    form: Mapping[str, str]
    ctx: Context

    @property
    def query(self) -> list[tuple[str, str]]:
        """Names and values of the address."""
        return [(name, value) for name, value in self.request.query_params.multi_items()]

    def given(self, name: str) -> str:
        """Return a value of the address, or an empty string."""
        return str(self.request.query_params.get(name, ""))

    def page(self, name: str, ledger: OpenLedger, **data: Any) -> Response:
        """Render a page."""
        own: dict[str, Any] = {
            "person": self.person,
            "token": self.site.access.token(self.person),
            "index": self.site.index(self.ctx),
            "ledger": ledger,
            "stale": is_stale(self.ctx, ledger),
            "recipe": self.site.recipe_path,
        }
        return render(name, **own | data)


def render(name: str, status: int = 200, **data: Any) -> Response:
    """Render a template. Without a person, the page has no token and names nothing of the workspace."""
    shared = {
        "visible": lambda value: visible(str(value)),
        "number": number,
        "short": lambda value: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}",
        "tone_of": lambda reasons: {reason: at % TONES for at, reason in enumerate(reasons)},
    }
    absent = dict.fromkeys(("person", "token", "index", "ledger", "stale", "recipe", "notice"), "")
    return HTMLResponse(template(f"{name}.html.j2", PACKAGE).render(shared | absent | data), status)


class CorpusPage:
    """The corpus page of one workspace.

    Args:
        context: function that opens the workspace for one request.
        recipe_path: recipe of the user, in which thresholds are saved.

    Raises:
        MissingError: DuckDB is not installed.
    """

    def __init__(self, context: Callable[[], Context], recipe_path: Path | None, access: Access) -> None:
        self.context, self.recipe_path, self.access = context, recipe_path, access
        self.reader = LedgerReader()
        self._recipe: tuple[tuple[object, ...], Recipe] | None = None

    def index(self, ctx: Context) -> str:
        """Return the address of the index of pages, or an empty string if it is not served."""
        found = running.known(ctx.workspace)
        return found.pages if found else ""

    def recipe(self) -> Recipe | None:
        """Return the recipe. It is loaded again only if one of its files has changed.

        Raises:
            RecipeError: the recipe is wrong.
        """
        if self.recipe_path is None:
            return None
        paths = recipe_files(self.recipe_path, FOLDER)
        key = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.exists())
        if self._recipe is None or self._recipe[0] != key:
            self._recipe = key, load(self.recipe_path)
        return self._recipe[1]

    def policies(self) -> dict[str, str]:
        """Return the policy of each bucket of the recipe; nothing if the recipe is missing or wrong."""
        try:
            recipe = self.recipe()
        except PlinthError:
            return {}
        return {name: bucket.policy for name, bucket in recipe.corpus.buckets.items()} if recipe else {}
