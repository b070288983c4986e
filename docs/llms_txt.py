"""`llms.txt` of the site: an index of its pages for language models, by role, with one sentence per page.

The format is that of https://llmstxt.org. It is derived from the menus in docs/roles/ and the first sentence of each
page, so it cannot become stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent


def text(outside: dict[str, str]) -> str:
    """Return the file. `outside` has the file of each page in docs/reference/ that shows a file outside docs/."""
    title, summary = _title((DOCS / "index.md").read_text()), first_sentence((DOCS / "index.md").read_text())
    lines = [f"# {title}", "", f"> {summary}", ""]
    for role in re.findall(r"^roles/\S+$", (DOCS / "index.md").read_text(), re.MULTILINE):
        menu = (DOCS / f"{role}.md").read_text()
        lines += [f"## {_title(menu)}", "", *_links(menu, outside), ""]
    return "\n".join(lines)


def _links(menu: str, outside: dict[str, str]) -> Iterator[str]:
    for name, page in re.findall(r"^(\S.*) </(\S+)>$", menu, re.MULTILINE):
        file = outside.get(page.removeprefix("reference/"), f"docs/{page}.md")
        sentence = first_sentence((DOCS.parent / file).read_text())
        yield f"- [{name}]({page}.html): {sentence}"


def first_sentence(page: str) -> str:
    """Return the first sentence of a page below its title, without links and blocks of code."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    below = re.split(r"^# .*$", prose, maxsplit=1, flags=re.MULTILINE)[1]
    paragraph = next(one for one in re.split(r"\n\s*\n", below) if re.match(r"\s*[\w`\[*]", one))
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.!?]) ", plain)[0]


def _title(page: str) -> str:
    return page.partition("\n")[0].removeprefix("# ")
