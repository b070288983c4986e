"""Read-only tools for agents over the Model Context Protocol (MCP): the command `plinth mcp`.

    tools       the table of tools, each a read-only command; their schemas; a call in this process, as JSON
    server      the protocol: lists the tools, validates arguments, returns results and errors
    read_only   refusal of every write below the workspace, for the process of the server

A tool is a command of the command line with `--json`, so a tool and its command always return the same. Commands that
write, and options that write, are not in the table. A new read-only command becomes a tool with one row.

This module has the command, which loads the other modules when it runs. The package `mcp` is in the extra `mcp`.
"""

from __future__ import annotations

import click

from plinth.extensions import require
from plinth_jobs.cli.options import Settings, examples, recipe_option, shared


@click.command(
    short_help="Serve read-only tools to agents (Model Context Protocol).",
    epilog=examples(
        "plinth mcp                          started by an agent's program, not in a terminal",
        "plinth mcp -w s3://bucket/prefix -r demo",
    ),
)
@shared
@recipe_option
def mcp(settings: Settings) -> None:
    """Serve read-only tools to agents on stdin and stdout, with the Model Context Protocol.

    The tools read the state of the workspace: assets, documents, runs, experiments, gates, lineage. No tool writes:
    approvals, taints and takedowns need the commands and keys of their roles.
    """
    require("mcp", "mcp")
    from plinth_extras.mcp_server.read_only import forbid_writes
    from plinth_extras.mcp_server.server import serve

    forbid_writes(settings.context(waits=True).workspace)  # fails now if there is no workspace
    serve(settings)
