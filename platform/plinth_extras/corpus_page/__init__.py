"""The corpus page: look at the corpus in a browser, label documents, and move the thresholds of rules.

    server       the server's process
    app          routes of the web application (ASGI), error pages, response headers
    pages        the pages and the two writes
    site         state of the server, and one request
    access       who may read, label and save; tokens of writes
    view         state of the document list, all of it in the address
    ledger       queries on the published ledger with DuckDB: lists, facets, histograms
    whatif       documents that change sides when a rule changes
    recipe_edit  save a changed rule into the user's recipe, with its comments
    document     one document: text with cut spans, rules, columns, duplicates, training steps
    search       words in texts by a bounded scan; near duplicates by the published index

The page reads the ledger, so it shows what the last `plinth run` published. It writes labels of reviewers and, when
asked to, one rule of the recipe. This module has the command, which loads the other modules when it runs. The package
`duckdb` is in the extra `page`.
"""

from __future__ import annotations

import click

from plinth_jobs.cli.options import Settings, examples, recipe_option, shared

HOST = "127.0.0.1"
#: First of the ports that `plinth up` tries.
PORT = 3011


@click.command(
    short_help="Look at the corpus in a browser: filter, search, read, label, move thresholds.",
    epilog=examples(
        "plinth corpus page",
        "plinth corpus page --port 3011 --origin https://corpus.example.org --editor ada@example.org",
    ),
)
@shared
@recipe_option
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.option(
    "--origin",
    multiple=True,
    envvar="PLINTH_CORPUS_ORIGINS",
    metavar="URL",
    help="Public address of a proxy with a login; repeatable.",
)
@click.option(
    "--editor",
    multiple=True,
    envvar="PLINTH_CORPUS_EDITORS",
    metavar="NAME",
    help="Person who may save rules through the proxy; repeatable.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="Exit when the parent process exits.")
def page(settings: Settings, port: int, origin: tuple[str, ...], editor: tuple[str, ...], with_parent: bool) -> None:
    """Serve the corpus page on loopback until Ctrl-C. `plinth up` also serves it.

    The page shows the documents of the published ledger. Labels are stored as by `plinth corpus review`. Rules are
    saved into the recipe file only on request.
    """
    from plinth_extras.corpus_page.server import serve

    serve(settings, port, origin, editor, with_parent)
