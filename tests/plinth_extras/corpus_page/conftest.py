"""A judged corpus with its ledger, a recipe of the user for it, and the real server of the corpus page."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn

from plinth import processes
from plinth.compute.context import Context
from plinth.provenance import ledger as ledger_stage
from plinth_extras.corpus_page.access import Access
from plinth_extras.corpus_page.app import app
from plinth_extras.corpus_page.ledger import LedgerReader, OpenLedger
from plinth_extras.corpus_page.site import CorpusPage
from tests import judged_corpus

RECIPE = """\
# A recipe of ours.
extends: tiny.yaml
name: ours

corpus:
  policies:
    default:
      profiles: null
      rules:
        - {reason: licence, drop: not licence.permitted}
        # chosen by eye
        - reason: too_few_words
          drop: gopher_quality.word_count < 20   # a threshold
        - {reason: few_stop_words, drop: gopher_quality.stop_words < 2}
"""


def publish_ledger(ctx: Context) -> None:
    """Write the ledger of a judged corpus."""
    made = ledger_stage.run(ctx, judged_corpus.ledger_of(ctx))
    ctx.refs.publish(made, key=made.digest)


@pytest.fixture
def ctx(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A copy of the judged corpus, with its ledger."""
    made = judged_corpus.copy(tmp_path_factory, tmp_path)
    publish_ledger(made)
    return made


@pytest.fixture
def opened(ctx: Context) -> Iterator[OpenLedger]:
    """The ledger, open for queries."""
    with LedgerReader().opened(ctx) as found:
        yield found


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of the user, next to the workspace."""
    path = tmp_path / "ours.yaml"
    path.write_text(RECIPE)
    return path


@dataclass
class Site:
    """A served corpus page."""

    port: int
    ctx: Context
    access: Access

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, form: dict[str, str] | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
        """Return status, body and headers of an answer; with a form, of a write with a page's token."""
        body = urlencode(form) if form is not None else None
        kind = {"Content-Type": "application/x-www-form-urlencoded"} if body is not None else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST" if form is not None else "GET", path, body, {**kind, **names})
        answer = connection.getresponse()
        found = answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        return found

    def token(self, **headers: str) -> str:
        """Return the token of a page."""
        found = re.search(r'data-token="([0-9a-f]*)"', self.ask("/whatif", **headers)[1])
        assert found is not None
        return found[1]


Serve = Callable[..., Site]


@pytest.fixture
def serve(ctx: Context, recipe: Path) -> Iterator[Serve]:
    """Start servers of the corpus page, which stop after the test."""
    running = list[tuple[uvicorn.Server, threading.Thread]]()

    def start(given: Context = ctx, path: Path | None = recipe, **access: Any) -> Site:
        port = processes.free_port("127.0.0.1")
        made = Access(port, **access)
        site = CorpusPage(lambda: Context(given.workspace), path, made)
        server = uvicorn.Server(uvicorn.Config(app(site), "127.0.0.1", port, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        return Site(port, given, made)

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()
