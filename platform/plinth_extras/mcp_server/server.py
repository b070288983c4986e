"""The MCP server: lists the tools, validates arguments, runs one call at a time, and returns results and errors."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

import anyio
import anyio.to_thread
import click
from jsonschema import Draft202012Validator
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from plinth.errors import PlinthError, RequestError
from plinth.text import escaped
from plinth_extras.mcp_server.tools import TOOLS, UNTRUSTED, ReadTool, call, command_of, input_schema
from plinth_jobs.cli.options import Settings

INSTRUCTIONS: Final = f"""Plinth trains language models from raw text, with lineage, gates and signed releases.

These tools read one workspace and write nothing. Begin with `status` and `runs`. {UNTRUSTED}

Decisions are made by people with signing keys, not through this server. Tell the person which command to run:
`plinth approve` (role approver), `plinth release promote` and `plinth release rollback` (promoter),
`plinth release taint` and `plinth corpus takedown exclude` (compliance), `plinth gates sign` (policy)."""

#: Schema of a successful result: the output of the command, and what it is.
OUTPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "Command whose output with `--json` this is."},
        "note": {"const": UNTRUSTED},
        "result": {"type": ["object", "array"], "description": "Output of the command."},
    },
    "required": ["command", "note", "result"],
    "additionalProperties": False,
}


def serve(settings: Settings) -> None:
    """Serve the tools on stdin and stdout until stdin is closed."""

    async def run() -> None:
        server = build(settings)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def build(settings: Settings) -> Server[dict[str, Any]]:
    """Return the server for a workspace."""
    one_at_a_time = anyio.CapacityLimiter(1)

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[describe(name, tool) for name, tool in TOOLS.items()])

    async def call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        return await anyio.to_thread.run_sync(
            answer, params.name, params.arguments or {}, settings, limiter=one_at_a_time
        )

    return Server(
        "plinth",
        version=version("plinth"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def describe(name: str, tool: ReadTool) -> Tool:
    """Return the description of a tool: the help of its command, and its schemas."""
    return Tool(
        name=name,
        description=f"{' '.join((command_of(tool).help or '').split())} (`plinth {tool.command}`)",
        input_schema=input_schema(tool),
        output_schema=OUTPUT_SCHEMA,
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )


def answer(name: str, arguments: Mapping[str, Any], settings: Settings) -> CallToolResult:
    """Return the result of a call. Failures of the command and invalid arguments are results with `is_error`.

    Raises:
        MCPError: there is no such tool.
    """
    if name not in TOOLS:
        raise MCPError(INVALID_PARAMS, f"no tool {name!r}; the tools are {', '.join(TOOLS)}")
    tool = TOOLS[name]
    try:
        _require_valid(name, input_schema(tool), arguments)
        found = call(tool, arguments, settings)
    except Exception as error:  # no failure of a command ends the server
        if settings.debug:
            traceback.print_exception(error)  # on standard error, which is the log of the server
        return _result({"command": f"plinth {tool.command}", "note": UNTRUSTED, "error": _facts(error)}, failed=True)
    return _result({"command": f"plinth {tool.command}", "note": UNTRUSTED, "result": found})


def _require_valid(name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    problems = [
        f"{'.'.join(map(str, one.absolute_path)) or 'arguments'}: {one.message}"
        for one in Draft202012Validator(schema).iter_errors(arguments)
    ]
    if problems:
        raise RequestError(
            f"the arguments of the tool {name} are invalid",
            found="; ".join(problems),
            expected=", ".join(schema["properties"]) or "no arguments",
            remedy="call the tool with arguments that match its input schema",
        )


def _facts(error: Exception) -> dict[str, Any]:
    """Return an error as data: what failed, the values found and expected, and the remedy."""
    if isinstance(error, PlinthError):
        rows = {"what": error.what, "found": error.found, "expected": error.expected, "remedy": error.remedy}
        return {name: str(value) for name, value in rows.items() if value is not None}
    if isinstance(error, click.ClickException):
        return {"what": error.format_message()}
    return {"what": f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"}


def _result(content: dict[str, Any], *, failed: bool = False) -> CallToolResult:
    text = escaped(json.dumps(content, ensure_ascii=False, indent=1))
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=content, is_error=failed)
