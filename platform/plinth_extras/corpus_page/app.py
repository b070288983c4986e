"""Web application of the corpus page: routes, error pages and response headers (ASGI).

Pages are HTML of this package's templates. They load one style sheet and one script from this server and nothing else,
and a content security policy forbids inline scripts and styles. All state is in the address. Two requests write: a
label, and a saved rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from plinth.compute.context import Context
from plinth.corpus.slices import reviews
from plinth.corpus.verdicts import STAGE_OF
from plinth.errors import (
    ConflictError,
    MissingError,
    PlinthError,
    RecipeError,
    RequestError,
    SignatureError,
)
from plinth.recipe.recipe import Recipe
from plinth.recipe.yaml_lines import files as recipe_files
from plinth.report.page import template
from plinth.storage import running
from plinth.text import visible
from plinth_extras.corpus_page import recipe_edit, search, whatif
from plinth_extras.corpus_page.access import Access, Person
from plinth_extras.corpus_page.document import PREVIEW, WINDOW, Documents, grouped
from plinth_extras.corpus_page.ledger import ROW_COLUMNS, Ledger, LedgerReader, is_stale
from plinth_extras.corpus_page.view import MAX_PAGE, PAGE_ROWS, View, number
from plinth_jobs.dagster_pages import RequestGuard
from plinth_jobs.recipes import FOLDER, load

PACKAGE: Final = "plinth_extras.corpus_page"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript"}
#: Colors of cut spans.
TONES: Final = 6
#: Largest body of a write.
MAX_BODY_BYTES: Final = 64 * 1024
STATUS: Final[tuple[tuple[type[PlinthError], HTTPStatus], ...]] = (
    (MissingError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (RequestError, HTTPStatus.BAD_REQUEST),
    (RecipeError, HTTPStatus.BAD_REQUEST),
    (SignatureError, HTTPStatus.FORBIDDEN),
)


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

    def page(self, name: str, ledger: Ledger | None = None, status: int = 200, **data: Any) -> Response:
        """Render a page."""
        shared = {
            "visible": lambda value: visible(str(value)),
            "number": number,
            "short": lambda value: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}",
            "tone_of": lambda reasons: {reason: at % TONES for at, reason in enumerate(reasons)},
            "person": self.person,
            "token": self.site.access.token(self.person),
            "index": self.site.index,
            "ledger": ledger,
            "notice": "",
            "stale": ledger is not None and is_stale(self.ctx, ledger),
            "recipe": self.site.recipe_path,
        }
        return HTMLResponse(template(f"{name}.html.j2", PACKAGE).render(shared | data), status)


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

    @property
    def index(self) -> str:
        """Address of the index of pages, or an empty string if it is not served."""
        found = running.known(self.context().workspace)
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


def app(site: CorpusPage, origins: tuple[str, ...] = ()) -> Starlette:
    """Return the ASGI application.

    Args:
        origins: public addresses of a proxy.
    """

    def route(path: str, handler: Callable[[Call], Response], *methods: str) -> Route:
        return Route(path, _endpoint(site, handler), methods=list(methods) or ["GET"])

    routes = [
        route("/", documents),
        route("/document/{id}", document),
        route("/whatif", what_if),
        route("/whatif/save", save_rule, "POST"),
        route("/label", label, "POST"),
        Route("/static/{name}", static),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(RequestGuard, port=site.access.port, origins=origins)],
        exception_handlers={404: lambda request, error: Response("not found\n", 404, headers=HEADERS)},
    )


def _endpoint(site: CorpusPage, handler: Callable[[Call], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return Response("the request is too large\n", 413, headers=HEADERS)
        response = await run_in_threadpool(_answered, site, handler, request, body)
        response.headers.update(HEADERS)
        return response

    return answer


def _answered(site: CorpusPage, handler: Callable[[Call], Response], request: Request, body: bytes) -> Response:
    """Answer a request; a named error becomes a page with what was found, what was expected and what to do."""
    call = None
    try:
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        person = site.access.person(request)
        call = Call(site, request, person, form, site.context())
        if request.method == "POST":
            site.access.require_token(person, form.get("token", ""))
        return handler(call)
    except PlinthError as error:
        status = next((code for kind, code in STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
        call = call or Call(site, request, Person("", False), {}, site.context())
        return call.page("error", status=status, error=error, kind=type(error).__name__)


def static(request: Request) -> Response:
    """Return the style sheet or the script."""
    name = request.path_params["name"]
    if name not in STATIC:
        return Response("not found\n", 404, headers=HEADERS)
    own = files(PACKAGE).joinpath(name).read_text("utf-8")
    shared = template("page_style.css.j2").render() if name.endswith(".css") else ""
    return Response(shared + own, media_type=STATIC[name], headers=HEADERS)


def documents(call: Call) -> Response:
    """Return the list of documents with its filters, histograms and searches."""
    with call.site.reader.opened(call.ctx) as ledger:
        view = View.parse(call.query, ledger.numeric)
        if target := _target(call, view):
            return RedirectResponse(target, HTTPStatus.SEE_OTHER)
        found, rows, notice = None, list[dict[str, Any]](), ""
        if view.similar:
            rows = search.near(call.ctx, ledger, view)
        elif view.text:
            found = search.words(call.ctx, ledger, view)
            rows = found.rows
        else:
            rows = ledger.rows(view)
        labels, notice = _labels(call.ctx)
        totals = ledger.totals(view)
        return call.page(
            "documents",
            ledger,
            view=view,
            rows=rows,
            found=found,
            notice=notice,
            labels=labels,
            totals=totals,
            facets=ledger.facets(view),
            histograms=[(column, ledger.histogram(view, column)) for column in view.shown],
            last_page=min(MAX_PAGE, max(1, -(-totals.documents // PAGE_ROWS))),
            stages=STAGE_OF,
        )


def _target(call: Call, view: View) -> str:
    """Return the address of the list that the search form or a range form asks for, or an empty string."""
    if call.given("kind"):
        other = {"text": "similar", "similar": "text"}.get(call.given("kind"), "text")
        return view.link(**{other: "", "text" if other == "similar" else "similar": call.given("q")})
    column = call.given("range")
    if column:
        pairs = view.pairs("in." + column, "page", "after")
        return "/?" + urlencode([*pairs, (f"in.{column}", f"{call.given('low')}..{call.given('high')}")])
    return ""


def document(call: Call) -> Response:
    """Return one document, or its preview next to the list."""
    preview = call.given("part") == "preview"
    start = call.given("from")
    start_cp = int(start) if start.isdigit() and len(start) < 12 else 0
    with call.site.reader.opened(call.ctx) as ledger:
        own = Documents(call.ctx, ledger)
        place = own.place(call.request.path_params["id"], call.given("at"))
        row = own.columns(place)
        window = own.window(place, start_cp, PREVIEW if preview else WINDOW)
        fired = own.rules(place, row)
        reasons = [row["reason"]] if row["reason"] else [rule.reason for rule in own.policy(place[0]).rules]
        asked = call.given("reason")
        labels, notice = _labels(call.ctx)
        data: dict[str, Any] = {"row": row, "place": place, "window": window, "rules": fired, "notice": notice}
        data |= {"reasons": [asked] if asked in reasons or asked == row["reason"] else reasons, "asked": asked}
        data |= {"labels": labels.get(row["id"], []), "at": ":".join(map(str, place))}
        if preview:
            return call.page("preview", ledger, **data)
        tokens, runs = own.training(row)
        return call.page(
            "document",
            ledger,
            duplicates=own.duplicates(row),
            columns=grouped(row),
            tokens=tokens,
            runs=runs,
            window_characters=WINDOW,
            **data,
        )


def what_if(call: Call) -> Response:
    """Return the rules of the policies, or one rule with moved thresholds and the documents that change sides."""
    with call.site.reader.opened(call.ctx) as ledger:
        known = whatif.rules(call.ctx, ledger, call.site.policies())
        if not call.given("reason"):
            return call.page("rules", ledger, rules=known, fired=whatif.fired(ledger, known))
        rule = whatif.rule_of(known, call.given("policy"), call.given("reason"))
        moves = {int(name[1:]): value for name, value in call.query if name[:1] == "t" and name[1:].isdigit() and value}
        text = whatif.moved(call.given("drop") or rule.text, moves)
        seed = int(call.given("seed")) if call.given("seed").isdigit() and len(call.given("seed")) < 9 else 1
        effect = whatif.effect(call.ctx, ledger, rule, text, seed)
        shown = [(one, _distribution(ledger, rule, one)) for one in whatif.thresholds(text)]
        read = map(whatif.ledger_column, sorted(whatif.compiled(ledger, rule, text).columns))
        columns = [name for name in read if name not in ROW_COLUMNS or name in ledger.numeric]
        labels, notice = _labels(call.ctx)
        return call.page(
            "whatif",
            ledger,
            rule=rule,
            text=text,
            effect=effect,
            before=[one.value for one in whatif.thresholds(rule.text)],
            thresholds=shown,
            sides=[
                (name, side, ledger.at(side.places, columns))
                for name, side in (("dropped", effect.dropped), ("kept", effect.kept))
            ],
            columns=columns,
            seed=seed,
            labels=labels,
            notice=notice,
            saved=call.given("saved"),
            **_saving(call, rule),
        )


def _distribution(ledger: Ledger, rule: whatif.Rule, one: whatif.Threshold) -> Any:
    """Return the histogram of a threshold's column over the rule's buckets; None for a column that is no number."""
    column = whatif.ledger_column(one.column) if one.column else ""
    view = View(chosen=tuple(("bucket", bucket) for bucket in rule.buckets))
    return ledger.histogram(view, column) if column in ledger.numeric else None


def _saving(call: Call, rule: whatif.Rule) -> dict[str, Any]:
    """Return the rule's text in the recipe, and the reason why it cannot be saved there, or an empty string."""
    path = call.site.recipe_path
    try:
        recipe = call.site.recipe()
        if path is None or recipe is None:
            raise MissingError("the page was started without a recipe", remedy="name one with -r FILE")
        current = recipe_edit.current(recipe, rule.policy, rule.reason)
        if not call.person.may_edit:
            raise SignatureError(
                f"{call.person.name} may not edit the recipe", remedy="start the page with --editor NAME"
            )
        recipe_edit.require_editable(path, call.ctx.workspace.root)
    except PlinthError as error:
        return {"current": "", "refusal": f"{error.what}; {error.remedy}" if error.remedy else error.what}
    return {"current": current, "refusal": ""}


def save_rule(call: Call) -> Response:
    """Save a changed rule into the recipe, and return to its page."""
    form, path = call.form, call.site.recipe_path
    with call.site.reader.opened(call.ctx) as ledger:
        known = whatif.rules(call.ctx, ledger, call.site.policies())
        rule = whatif.rule_of(known, form.get("policy", ""), form.get("reason", ""))
        text = form.get("drop", "").strip()
        whatif.compiled(ledger, rule, text)
    saving = _saving(call, rule)
    if saving["refusal"] or path is None:
        raise SignatureError(f"the rule cannot be saved: {saving['refusal']}")
    position = recipe_edit.save(path, rule.policy, rule.reason, form.get("before", ""), text)
    query = {"policy": rule.policy, "reason": rule.reason, "drop": text, "saved": str(position)}
    return RedirectResponse("/whatif?" + urlencode(query), HTTPStatus.SEE_OTHER)


def label(call: Call) -> Response:
    """Store a label of a document, as `plinth corpus label` does."""
    moment = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    given = {name: call.form.get(name, "") for name in ("id", "reason", "label", "note")}
    try:
        made = reviews.Review.model_validate({**given, "reviewer": call.person.name, "time": moment})
    except ValidationError as error:
        raise RequestError(
            "the label is not valid", found=error.errors()[0]["msg"], expected="a document, a reason, and good or bad"
        ) from error
    with call.site.reader.opened(call.ctx) as ledger:
        if not ledger.find([made.id]):
            raise MissingError(f"no document {made.id}")
    reviews.append(call.ctx.workspace, [made])
    back = call.form.get("back", "/")
    safe = back if back.startswith("/") and not back.startswith(("//", "/\\")) else "/"
    return RedirectResponse(safe, HTTPStatus.SEE_OTHER)


def _labels(ctx: Context) -> tuple[dict[str, list[reviews.Review]], str]:
    """Return the labels by document, and what is wrong with their files, or an empty string."""
    found: dict[str, list[reviews.Review]] = {}
    try:
        for review in reviews.read(ctx.workspace):
            found.setdefault(review.id, []).append(review)
    except PlinthError as error:
        return {}, error.what
    return found, ""
