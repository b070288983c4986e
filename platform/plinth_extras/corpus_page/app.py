"""Web application of the corpus page: routes, error pages and response headers (ASGI).

Pages are HTML of this package's templates. They load one style sheet and one script from this server and nothing else,
and a content security policy forbids inline scripts and styles. All state is in the address. Two requests write: a
label, and a saved rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plinth.errors import ConflictError, MissingError, PlinthError, RecipeError, RequestError, SignatureError
from plinth.report.page import template
from plinth_extras.corpus_page import pages
from plinth_extras.corpus_page.site import PACKAGE, Call, CorpusPage, render
from plinth_jobs.dagster_pages import RequestGuard

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript"}
#: Requests that are answered at once, which bounds the memory of the process; others wait.
CONCURRENT: Final = 3
#: Largest body of a write.
MAX_BODY_BYTES: Final = 64 * 1024
STATUS: Final[tuple[tuple[type[PlinthError], HTTPStatus], ...]] = (
    (MissingError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (RequestError, HTTPStatus.BAD_REQUEST),
    (RecipeError, HTTPStatus.BAD_REQUEST),
    (SignatureError, HTTPStatus.FORBIDDEN),
)


def app(site: CorpusPage, origins: tuple[str, ...] = ()) -> Starlette:
    """Return the ASGI application.

    Args:
        origins: public addresses of a proxy.
    """

    limiter = CapacityLimiter(CONCURRENT)

    def route(path: str, handler: Callable[[Call], Response], method: str = "GET") -> Route:
        return Route(path, _endpoint(site, handler, limiter), methods=[method])

    routes = [
        route("/", pages.documents),
        route("/document/{id}", pages.document),
        route("/whatif", pages.what_if),
        route("/whatif/save", pages.save_rule, "POST"),
        route("/label", pages.label, "POST"),
        Route("/static/{name}", static),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(RequestGuard, port=site.access.port, origins=origins)],
        exception_handlers={404: lambda request, error: Response("not found\n", 404, headers=HEADERS)},
    )


def _endpoint(
    site: CorpusPage, handler: Callable[[Call], Response], limiter: CapacityLimiter
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return Response("the request is too large\n", 413, headers=HEADERS)
        response = await to_thread.run_sync(_answered, site, handler, request, body, limiter=limiter)
        response.headers.update(HEADERS)
        return response

    return answer


def _answered(site: CorpusPage, handler: Callable[[Call], Response], request: Request, body: bytes) -> Response:
    """Answer a request; a named error becomes a page with what was found, what was expected and what to do."""
    try:
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        person = site.access.person(request)
        call = Call(site, request, person, form, site.context())
        if request.method == "POST":
            site.access.require_token(person, form.get("token", ""))
        return handler(call)
    except PlinthError as error:
        status = next((code for kind, code in STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
        return render("error", status, error=error, kind=type(error).__name__)


def static(request: Request) -> Response:
    """Return the style sheet or the script."""
    name = request.path_params["name"]
    if name not in STATIC:
        return Response("not found\n", 404, headers=HEADERS)
    own = files(PACKAGE).joinpath(name).read_text("utf-8")
    shared = template("page_style.css.j2").render() if name.endswith(".css") else ""
    return Response(shared + own, media_type=STATIC[name], headers=HEADERS)
