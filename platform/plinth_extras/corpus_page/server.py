"""Server process of the corpus page."""

from __future__ import annotations

import atexit
import gc
import os
import threading
import time
from contextlib import suppress
from functools import partial

import uvicorn

from plinth.errors import MissingError, RequestError
from plinth_extras.corpus_page import HOST
from plinth_extras.corpus_page.access import Access
from plinth_extras.corpus_page.app import app
from plinth_extras.corpus_page.site import CorpusPage
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings

POLL_S = 1.0


def serve(
    settings: Settings, port: int, origins: tuple[str, ...], editors: tuple[str, ...], with_parent: bool = False
) -> None:
    """Serve the corpus page of a workspace until a signal arrives.

    Args:
        with_parent: also stop when the parent process ends.

    Raises:
        MissingError: there is no workspace.
        RequestError: the port is in use, or public addresses are given without a login.
    """
    context = partial(settings.context, waits=True)
    access = Access.of(context().workspace, port, origins, editors)
    try:
        recipe = settings.recipe_path()
    except (MissingError, RequestError):  # the page needs a recipe only to save rules
        recipe = None
    application = app(CorpusPage(context, recipe, access), origins)
    server = uvicorn.Server(uvicorn.Config(application, HOST, port, log_level="warning", server_header=False))
    if with_parent:
        threading.Thread(target=_end_with_parent, args=(server, os.getppid()), daemon=True).start()
    else:
        output.line(f"http://{HOST}:{port}/")
    atexit.register(gc.unfreeze)  # the script freezes objects at its end; DuckDB reports each that is not collected
    try:
        with suppress(KeyboardInterrupt):  # Ctrl-C is the usual end
            server.run()
    except SystemExit as error:  # uvicorn's way to report a port in use
        raise RequestError(f"cannot serve on {HOST}:{port}", found=error, remedy="choose another --port") from error


def _end_with_parent(server: uvicorn.Server, parent: int) -> None:
    while os.getppid() == parent and not server.should_exit:
        time.sleep(POLL_S)
    server.should_exit = True
