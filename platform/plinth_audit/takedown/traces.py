"""Copies of removed text next to the content store: pages, MLflow, Dagster, logs and files of runs.

Excerpts of the removed text, read from the earlier snapshot, are searched in these files byte for byte, also as JSON
and HTML escape them. Content itself (store, records) is known by its manifests, raw input by its sources; weights hold
no text byte for byte.
"""

from __future__ import annotations

import html
import json
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from plinth.compute.context import Context
from plinth.compute.progress import metered
from plinth.storage.objects import files_below
from plinth.text.plural import counted
from plinth_audit.takedown.remaining import HOLDS_TEXT, MAY_HOLD_TEXT, Remaining

#: Documents of which excerpts are searched, excerpts of each, and their length in characters.
SEARCHED, EXCERPTS, LENGTH = 50, 3, 48
#: Shorter lines occur in many documents.
_SHORTEST: Final = 24
#: Different characters of an excerpt: fewer have rulers and tables of any document.
_LETTERS: Final = 8
_CHUNK_BYTES: Final = 16 * 2**20
_CONTENT: Final = frozenset(("store", "records", "manifests", "refs", "input", "impact", "exclusions", "takedown"))
#: Of these folders only texts are read, not weights.
_WEIGHTY: Final = frozenset(("runs", "models"))
_TEXTS: Final = frozenset((".json", ".jsonl", ".yaml", ".yml", ".txt", ".md", ".html", ".log", ".csv", ""))
_UNTIL: Final = {
    "reports": "until the page is written again (`plinth report`, `plinth report pages`), or you delete it",
    "mlflow": "until the artifact or run is deleted in MLflow (`mlflow gc` removes its bytes)",
    "dagster": "until its run is deleted in Dagster (`dagster run delete`)",
}
#: Files that are listed by name; all are counted.
LISTED: Final = 50


def traces(ctx: Context, texts: Sequence[str]) -> Iterator[Remaining]:
    """List the files that hold an excerpt of a removed text, and what cannot be searched.

    Args:
        texts: removed texts, as far as an earlier snapshot is still in the store.
    """
    wanted = [excerpt for text in texts[:SEARCHED] for excerpt in excerpts(text)]
    found = dict(_holding(ctx, forms(wanted))) if wanted else {}
    for path, count in sorted(found.items())[:LISTED]:
        until = _UNTIL.get(path.partition("/")[0], "until you delete it")
        yield Remaining(what=f"{path}: {counted(count, 'excerpt')} of the removed text", where="the workspace",
                        until=until, state=HOLDS_TEXT)  # fmt: skip
    if len(found) > LISTED:
        where = f"the workspace: {counted(len(found) - LISTED, 'file')} more"
        yield Remaining(what="files with excerpts of the removed text", where=where, until="until you delete them")
    searched = (
        f"searched for {counted(len(wanted), 'excerpt')} of {counted(min(len(texts), SEARCHED), 'removed text')}, "
        f"found in {counted(len(found), 'file')}"
    )
    yield Remaining(
        what="pages, MLflow, Dagster, logs and files of runs",
        where=f"the workspace, {searched if wanted else 'not searched: the removed text is no longer in the store'}",
        until="until you delete the files in which an excerpt is found",
        state=MAY_HOLD_TEXT,
    )
    yield Remaining(
        what="intermediate results in the step cache",
        where=f"records and store of {ctx.workspace.uri or 'the workspace'}",
        until="until `plinth ops gc --delete` deletes them: unused for 30 days, and found so twice, a day apart",
        state=MAY_HOLD_TEXT,
    )
    if ctx.workspace.uri:
        yield Remaining(
            what="caches of the store on other machines",
            where="PLINTH_CACHE of every machine that used the workspace",
            until="until newer blobs replace them, or you delete the folder there",
            state=MAY_HOLD_TEXT,
        )


def excerpts(text: str) -> tuple[str, ...]:
    """The middles of the longest lines of a text; none of lines that are short, or ruled as in tables."""
    lines = sorted({line.strip() for line in text.splitlines()}, key=lambda line: (-len(line), line))
    middles = (line[max(0, (len(line) - LENGTH) // 2) :][:LENGTH] for line in lines if len(line) >= _SHORTEST)
    return tuple(islice((one for one in middles if len(set(one)) >= _LETTERS), EXCERPTS))


def forms(wanted: Sequence[str]) -> tuple[bytes, ...]:
    """The bytes of excerpts as they are, in pages, in JSON, and in JSON inside JSON (Dagster's events)."""
    escaped = (form for one in wanted for form in (one, *_in_json(one), *_in_html(one)))
    return tuple(dict.fromkeys(form.encode(errors="surrogatepass") for form in escaped))


def _in_json(one: str) -> tuple[str, ...]:
    once = [json.dumps(one, ensure_ascii=ascii)[1:-1] for ascii in (True, False)]
    return (*once, *(json.dumps(form)[1:-1] for form in once))


def _in_html(one: str) -> tuple[str, ...]:
    bare = html.escape(one, quote=False)
    return bare, html.escape(one), bare.replace('"', "&#34;").replace("'", "&#39;")


def _holding(ctx: Context, wanted: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    """Path in the workspace of every regular file that holds one of the excerpts, and how many; no link is followed."""
    root = ctx.workspace.root
    for name, facts in metered(ctx.progress, "searching files", files_below(root), 0):
        top, _, rest = name.partition("/")
        skipped = top in _CONTENT or (top in _WEIGHTY and Path(rest).suffix not in _TEXTS)
        if not skipped and stat.S_ISREG(facts.st_mode) and (count := _count(root / name, wanted)):
            yield name, count


def _count(path: Path, wanted: Sequence[bytes]) -> int:
    """Excerpts in a file; one that vanished meanwhile holds none."""
    longest, found, before = max(map(len, wanted)), set[bytes](), b""
    with suppress(FileNotFoundError), path.open("rb") as stream:
        while data := stream.read(_CHUNK_BYTES):
            found |= {one for one in wanted if one not in found and one in before + data}
            before = data[-longest:]
    return len(found)
