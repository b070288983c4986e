"""A few hundred small documents for jobs/plinth_jobs/recipes/tiny.yaml, the same bytes on every machine.

    tiny/web.warc.gz     pages with navigation around the text; one record is broken, one page is a duplicate
    tiny/prose.jsonl     articles; some too short, some in German, some with an e-mail address, one line broken
    tiny/code/           a source tree with LICENCES.json; one package is under GPL, of one nothing is known

`PLANTED` lists the documents that a run must find. `python -m tests.tiny_corpus DIR` writes them below DIR.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

#: Documents planted by kind, as numbers.
PLANTED = {"too_short": 6, "german": 8, "email": 5, "exact_duplicates": 4, "near_duplicates": 4, "gpl": 7, "unknown": 5}

WEB_PAGES, ARTICLES, SOURCE_FILES = 90, 120, 80


def _words(text: str, separator: str | None = None) -> list[str]:
    return text.split(separator)


NOUNS = _words(
    "river bridge engine garden letter window market teacher harbour mountain village ship clock kitchen forest "
    "captain lantern orchard railway museum doctor island valley painter library farmer bakery tower station theatre"
)
ADJECTIVES = _words(
    "old quiet narrow bright distant careful heavy wooden northern empty famous gentle broken early modern strange "
    "steady warm proud simple hidden golden rapid patient"
)
VERBS = _words(
    "crossed repaired described followed painted measured opened carried watched remembered visited counted planned "
    "copied guarded moved studied crowned sold drew"
)
PLACES = _words("in spring|before the storm|near the coast|after the war|at the end of the year|on the first day", "|")
GERMAN = (
    "Die alte Brücke am Fluss wurde nach dem Krieg wieder aufgebaut und ist heute ein beliebtes Ziel. "
    "Viele Menschen kommen im Sommer in die Stadt, um den Markt und das kleine Museum zu besuchen. "
    "Der Lehrer erzählte den Kindern von der Geschichte des Hafens, und sie hörten ihm lange zu. "
    "Am Abend leuchteten die Laternen, während der Wind vom Meer her über die Felder wehte. "
    "Niemand wusste genau, wann das Schiff zurückkehren würde, aber alle warteten geduldig darauf. "
)


def write(folder: Path) -> Path:
    """Write all sources below `folder` (a workspace's `input/`); returns it."""
    target = folder / "tiny"
    target.mkdir(parents=True, exist_ok=True)
    articles = _articles(random.Random(1))
    lines = [json.dumps(record, ensure_ascii=False) for record in articles]
    lines.insert(40, '{"text": "this line was cut off')
    (target / "prose.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (target / "web.warc.gz").write_bytes(_warc(random.Random(2), articles))
    _tree(random.Random(3), target / "code")
    return folder


def _sentence(rng: random.Random) -> str:
    noun, other, third = rng.sample(NOUNS, 3)
    first, second = rng.sample(ADJECTIVES, 2)
    verb, again = rng.sample(VERBS, 2)
    shapes = (
        f"The {first} {noun} {verb} the {second} {other} {rng.choice(PLACES)}.",
        f"People say that the {noun} of the {first} {other} was {again} by a {second} {third}.",
        f"{rng.choice(PLACES).capitalize()}, a {first} {noun} {verb} the {other} and {again} the {third} with it.",
        f"It is known that {first} {noun}s have {again} every {other} that a {second} {third} {verb}.",
    )
    return rng.choice(shapes)


def article(rng: random.Random) -> str:
    paragraphs = (" ".join(_sentence(rng) for _ in range(rng.randint(4, 6))) for _ in range(rng.randint(2, 3)))
    return "\n\n".join(paragraphs)


def _articles(rng: random.Random) -> list[dict[str, str]]:
    texts = [article(rng) for _ in range(ARTICLES)]
    planted = [_sentence(rng) for _ in range(PLANTED["too_short"])]
    planted += [f"{GERMAN}Seite {rng.choice(NOUNS)} {number}.\n\n{GERMAN}" for number in range(PLANTED["german"])]
    for number in range(PLANTED["email"]):
        texts[number] += f"\n\nPlease write to {NOUNS[number]}@tidewater-house.net and ask for the {NOUNS[number + 1]}."
    planted += texts[20 : 20 + PLANTED["exact_duplicates"]]
    planted += [f"{text} That was the end." for text in texts[30 : 30 + PLANTED["near_duplicates"]]]
    return [{"text": text, "url": f"https://prose.example/{number}"} for number, text in enumerate(texts + planted)]


def _warc(rng: random.Random, articles: list[dict[str, str]]) -> bytes:
    pages = [article(rng) for _ in range(WEB_PAGES)]
    pages.append(articles[50]["text"])  # the same text in two buckets
    records = [_record(number, _page(text)) for number, text in enumerate(pages)]
    records.append(gzip.compress(b"WARC/1.1\r\nWARC-Type: response\r\nContent-Length: 900\r\n\r\nshort", mtime=0))
    return b"".join(records)


def _page(text: str) -> bytes:
    body = "".join(f"<p>{paragraph}</p>\n" for paragraph in text.split("\n\n"))
    navigation = '<nav><ul><li><a href="/">Home</a></li><li><a href="/about">About</a></li></ul></nav>'
    return (
        f"<!doctype html><html lang=en><head><title>Page</title></head><body>{navigation}\n"
        f"<main><article><h1>An account</h1>\n{body}</article></main><footer>All pages</footer></body></html>"
    ).encode()


def _record(number: int, page: bytes) -> bytes:
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
    header = (
        "WARC/1.1\r\nWARC-Type: response\r\n"
        f"WARC-Target-URI: https://web.example/{number}\r\nWARC-Date: 2026-11-01T00:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-{number:012d}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    ).encode()
    return gzip.compress(header + http + b"\r\n\r\n", mtime=0)


def _tree(rng: random.Random, folder: Path) -> None:
    """Packages under MIT, one under GPL, and one of which nothing is known."""
    names = ["copyleft"] * PLANTED["gpl"] + ["unlicensed"] * PLANTED["unknown"]
    names += [f"package{number % 6}" for number in range(SOURCE_FILES - len(names))]
    for number, name in enumerate(names):
        path = folder / name / f"{rng.choice(NOUNS)}_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(_function(rng) for _ in range(rng.randint(4, 8))), encoding="utf-8")
    licences = {f"package{number}": "MIT" for number in range(6)} | {"copyleft": "GPL-3.0-only"}
    (folder / "LICENCES.json").write_text(json.dumps(licences))


def _function(rng: random.Random) -> str:
    verb, noun, other = rng.choice(VERBS), rng.choice(NOUNS), rng.choice(NOUNS)
    return (
        f"def {verb}_{noun}({other}: int, limit: int = {rng.randint(2, 90)}) -> int:\n"
        f'    """{_sentence(rng)}"""\n'
        f"    total = {rng.randint(0, 9)}\n"
        f"    for step in range({rng.randint(2, 50)}):\n"
        f"        if {other} % {rng.randint(2, 9)} == step:\n"
        f"            total += {other} * {rng.randint(2, 99)}\n"
        f"    return min(total, limit)\n"
    )


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
