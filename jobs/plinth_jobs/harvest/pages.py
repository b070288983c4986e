"""Script that renders the standard library's documentation with pydoc, in a separate process.

Importing every module has side effects, so nothing else runs in this process. Standard input has one name per line.
Standard output has a JSON line `{"begin": name}` for each name and, if the name has a page, `{"page": name, "html":
…}`. The process stops when the pages reach the number of characters given on the command line. Only the standard
library is imported here. Kernel timers end the process if a module takes too long. The main limit is on CPU time, so
that a busy machine skips the same modules. The wall-clock limit is far higher.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import pydoc
import re
import signal
import sys
import sysconfig
import warnings
from functools import lru_cache
from typing import Any

PLAIN = (bool, int, float, str, bytes, type(None), tuple, frozenset)
CPU_S, WALL_S = 10, 120
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}|(?<=[^\w])0x7f[0-9a-f]{8,}")
_FILE_LINK = re.compile(r'<a href="file:[^"]*">[^<]*</a>(<br>)?')


class Pages(pydoc.HTMLDoc):
    """Renderer for pydoc's HTML that leaves out data about this machine: values of objects, paths, addresses."""

    def docother(self, object: Any, name: str | None = None, mod: str | None = None, *ignored: Any) -> str:
        if isinstance(object, PLAIN) and not name_is_of_machine(name):
            return super().docother(object, name, mod)
        return f"<strong>{self.escape(name or '')}</strong> = a {self.escape(type(object).__name__)} object"


def name_is_of_machine(name: str | None) -> bool:
    """Return True if the value of this name depends on the machine or on the time."""
    return bool(name) and any(word in str(name).lower() for word in ("path", "prefix", "executable", "argv", "environ"))


def module_page(name: str) -> str:
    """Render the documentation page of a module as HTML."""
    html = Pages()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        module = pydoc.safeimport(name)
        if module is None:
            return ""
        return html.page(pydoc.describe(module), html.document(module, name))


def topic_page(name: str) -> str:
    """Render the page of a keyword or topic of the language reference as HTML."""
    from pydoc_data.topics import topics

    html = Pages()
    text = html.markup(str(topics[name]))
    return html.page(name, html.bigsection(name, "title", f"<pre>{text}</pre>"))


def cleaned(html: str) -> str:
    """Remove links to files, paths and addresses from HTML."""
    html = _ADDRESS.sub("", _FILE_LINK.sub("", html))
    folders = {sysconfig.get_paths()["stdlib"], sys.prefix, sys.base_prefix, sys.exec_prefix, os.getcwd()}
    for folder in sorted(folders, key=len, reverse=True):
        if len(folder) > 1:
            html = html.replace(folder, "")
    return html


def main() -> None:
    """Render the pages of the names on standard input, and write them to standard output."""
    left = int(sys.argv[1])
    # pydoc would parse the source of the whole module again for each class without a docstring.
    ast.parse = lru_cache(maxsize=4)(ast.parse)  # type: ignore[assignment]
    names = sys.stdin.read().split("\n")
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    for line in filter(None, names):
        print(json.dumps({"begin": line}), file=out, flush=True)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_REAL, WALL_S)
        kind, _, name = line.partition(":")
        try:
            html = topic_page(name) if kind == "topic" else module_page(name)
        except BaseException:  # a module may raise anything when imported, SystemExit included
            continue
        if html:
            html = cleaned(html)
            print(json.dumps({"page": line, "html": html}), file=out, flush=True)
            left -= len(html)
        if left <= 0:
            break
    out.flush()
    os._exit(0)  # do not wait for threads of imported modules


if __name__ == "__main__":
    main()
