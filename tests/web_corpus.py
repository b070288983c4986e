"""A small crawl in WARC files with all the defects of a web corpus, and a reference.

    crawl/*.warc.gz        pages of a dozen hosts, some of them listed, copied, toxic, leaked, foreign or broken
    reference/books.jsonl  clean prose: what the quality classifier and the perplexity model learn from
    lists/urls/            blocked domains, words and reputations
    lists/lexicon.tsv      a lexicon of invented words; lists/toxicity.jsonl labeled text with them
    protected/quiz.jsonl   items of a benchmark

`PLANTED` lists the planted pages by kind, as numbers. `python -m tests.web_corpus DIR` writes it all below DIR.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from plinth.corpus.models.examples import line
from plinth.corpus.slices import generate
from tests.tiny_corpus import GERMAN, NOUNS, _words

#: Number of planted pages by kind.
PLANTED = {
    "blocked_domain": 20,
    "blocked_words": 12,
    "german": 15,
    "mixed_language": 8,
    "too_short": 25,
    "repeated_lines": 15,
    "toxic": 15,
    "secrets": 6,
    "emails": 20,
    "leaked": 10,
    "mirror": 6,
    "exact_copy": 20,
    "near_copy": 20,
    "reordered": 8,
    "passage": 12,
    "noise": 15,
    "clickbait": 40,
}
GOOD_PAGES, BOOKS, ITEMS = 420, 160, 40
HOSTS = [f"{name}.example" for name in ("harbour-news", "old-letters", "valley-notes", "museum-talk", "field-guide")]
#: Text that one host adds to its pages, inside the content.
APPEAL = "Subscribe to the letter of the harbour and never miss a story about our coast and its people again."
PASSAGE = (
    "In the year of the great flood the keeper of the northern lighthouse wrote down every ship that passed, and the "
    "list which he left to the library of the town is now the only witness of a trade that fed three valleys, because "
    "the books of the merchants burnt with the old exchange and nobody among the living remembers what the barges "
    "carried when they came down the river with lanterns at their bows."
)


def write(folder: Path) -> Path:
    """Write all sources below `folder` (a workspace's `input/`); returns it."""
    terms = generate.invented(5)
    rng = random.Random(11)
    items = [_prose(rng, 1) for _ in range(ITEMS)]
    pages = list(_pages(rng, terms, items))
    rng.shuffle(pages)
    _warcs(folder / "crawl", pages)
    _lines(folder / "reference" / "books.jsonl", ({"text": _book(rng), "url": f"book:{n}"} for n in range(BOOKS)))
    _lists(folder / "lists", terms)
    _lines(folder / "protected" / "quiz.jsonl", ({"id": f"q{n}", "question": text} for n, text in enumerate(items)))
    return folder


def _pages(rng: random.Random, terms: tuple[generate.Term, ...], items: list[str]) -> Iterator[tuple[str, str, str]]:
    """(kind, address, text) of every page."""
    good = [_prose(rng, rng.randint(3, 5)) for _ in range(GOOD_PAGES)]
    for number, text in enumerate(good):
        host = rng.choice(HOSTS)
        yield "good", f"https://{host}/stories/{number}", f"{text}\n\n{APPEAL}" if host == HOSTS[0] else text
    toxic = [row.text for row in generate.toxicity(6, 40, terms) if row.bad and len(row.text.split()) > 60]
    made = {
        "blocked_domain": lambda n: _prose(rng, 3),
        "blocked_words": lambda n: _prose(rng, 3),
        "german": lambda n: "\n\n".join(GERMAN + f"Seite {n} {rng.choice(NOUNS)}." for _ in range(3)),
        "mixed_language": lambda n: f"{_prose(rng, 2)}\n\n{GERMAN}{GERMAN}",
        "too_short": lambda n: f"Page {n} of the {rng.choice(NOUNS)}.",
        "repeated_lines": lambda n: "\n".join(f"Buy the {NOUNS[n]} now and save money today." for _ in range(30)),
        "toxic": lambda n: f"{toxic[n % len(toxic)]}\n\n{toxic[(n + 1) % len(toxic)]}",
        "secrets": lambda n: f"{_prose(rng, 3)}\n\nThe key is AKIA{_letters(rng, 16)} and nobody may know it.",
        "emails": lambda n: f"{_prose(rng, 3)}\n\nWrite to {NOUNS[n]}.{NOUNS[-n - 1]}@tidewater-house.net today.",
        "leaked": lambda n: f"{_prose(rng, 2)}\n\n{items[n]}\n\n{_prose(rng, 1)}",
        "mirror": lambda n: f"{_prose(rng, 2)}\n\nQuestion. {items[20 + n].upper()}",
        "exact_copy": lambda n: good[n],
        "near_copy": lambda n: f"{good[40 + n]} And that was the end of it.",
        "reordered": lambda n: _reordered(rng, good[80 + n]),
        "passage": lambda n: f"{_prose(rng, 2)}\n\n{PASSAGE}\n\n{_prose(rng, 2)}",
        "clickbait": lambda n: "\n\n".join(" ".join(_bait(rng) for _ in range(6)) for _ in range(4)),
        "noise": lambda n: " ".join(_letters(rng, rng.randint(3, 9)).lower() for _ in range(150)),
    }
    for kind, count in PLANTED.items():
        for number in range(count):
            host = {"blocked_domain": f"www{number}.spam-farm.example", "mirror": "quiz-mirror.example"}.get(kind)
            path = "casinobonus-now" if kind == "blocked_words" else f"p/{kind.replace('_', '-')}"
            yield kind, f"https://{host or rng.choice(HOSTS)}/{path}/{number}", made[kind](number)


def _prose(rng: random.Random, paragraphs: int) -> str:
    """Plain sentences over many nouns, names and numbers, so that no two paragraphs are alike."""
    return "\n\n".join(" ".join(_sentence(rng) for _ in range(rng.randint(4, 7))) for _ in range(paragraphs))


_SUBJECTS = _words(
    "the keeper of the {n}|a young {p}|the old {p} from {t}|everybody in {t}|the council of {t}|a letter about the {n}|"
    "the {p} who owned the {n}|nobody near the {n}|the first {p} of {t}|the story of the {n}",
    "|",
)
_VERBS = _words(
    "remembered|described|never forgot|wrote about|looked for|paid for|had heard of|was proud of|asked after|"
    "told the children of|kept a picture of|made a drawing of|left a note on",
    "|",
)
_OBJECTS = _words(
    "the {n} behind the {m}|a {n} with {k} windows|the winter of {y}|the road to {t}|{k} boxes of {m} and {n}|"
    "the {p} and the {m}|what the {p} had said in {y}|the day when the {n} came to {t}|a map of the {m}",
    "|",
)
_PLACES = _words(" at {o}| from {o}| of {o}, in {y},|, who came from {o},| near {o}| in {y}", "|")
_ENDS = _words(". |, and {q} heard of it in {y}. |, although the {m} of {q} was gone. |, because {q} had asked. ", "|")
_PEOPLE = _words("teacher|doctor|painter|farmer|captain|baker|sailor|tailor|gardener|printer|miller|clerk", "|")
_SYLLABLES = _words("ar|bel|cor|dan|el|fen|gar|hol|is|kel|lor|mar|nor|os|pel|rin|sel|tor|ul|ven", "|")


def _sentence(rng: random.Random) -> str:
    text = (
        f"{rng.choice(_SUBJECTS)}{rng.choice(_PLACES)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}{rng.choice(_ENDS)}"
    )
    town, other, third = ("".join(rng.choices(_SYLLABLES, k=3)).capitalize() for _ in range(3))
    facts = {
        "n": rng.choice(NOUNS),
        "m": rng.choice(NOUNS),
        "p": rng.choice(_PEOPLE),
        "t": town,
        "o": other,
        "q": third,
    }
    filled = text.format(**facts, k=rng.randint(2, 90), y=rng.randint(1700, 1990)).strip()
    return filled[0].upper() + filled[1:]


def _book(rng: random.Random) -> str:
    """Prose with the turns of an older book, which pages of the crawl do not have."""
    turns = _words("It is recorded that |We read that |The reader may recall how |There can be no doubt that ", "|")
    pages = ([rng.choice(turns) + _lowered(_sentence(rng)) for _ in range(rng.randint(4, 7))] for _ in range(6))
    return "\n\n".join(" ".join(page) for page in pages)


def _lowered(text: str) -> str:
    return text[0].lower() + text[1:]


def _bait(rng: random.Random) -> str:
    return (
        f"You will not believe what this {rng.choice(_PEOPLE)} did with the {rng.choice(NOUNS)}, so click and share it "
        f"with {rng.randint(2, 90)} friends to get the best deal of the {rng.choice(NOUNS)} season!"
    )


def _reordered(rng: random.Random, text: str) -> str:
    sentences = text.replace("\n\n", " ").split(". ")
    rng.shuffle(sentences)
    return ". ".join(sentence.rstrip(".") for sentence in sentences) + "."


def _letters(rng: random.Random, count: int) -> str:
    return "".join(rng.choices("QWXZJKVYPBGMHF", k=count))


def _warcs(folder: Path, pages: list[tuple[str, str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(4):
        records = (_record(f"{part}-{n}", address, text) for n, (_, address, text) in enumerate(pages[part::4]))
        (folder / f"crawl-{part}.warc.gz").write_bytes(b"".join(records))


def _record(name: str, address: str, text: str) -> bytes:
    blocks = text.split("\n\n")
    body = "".join("<p>" + block.replace("\n", "<br>\n") + "</p>\n" for block in blocks)
    menu = "".join(f'<li><a href="/{word}">{word}</a></li>' for word in ("home", "archive", "about", "contact"))
    page = (
        f"<!doctype html><html lang=en><head><title>{name}</title></head><body><nav><ul>{menu}</ul></nav>\n"
        f"<main><article>\n{body}</article></main>"
        "<footer>All rights of the page reserved</footer></body></html>"
    ).encode()
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
    header = (
        "WARC/1.1\r\nWARC-Type: response\r\n"
        f"WARC-Target-URI: {address}\r\nWARC-Date: 2026-11-01T00:00:00Z\r\nWARC-Record-ID: <urn:x:{name}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    ).encode()
    return gzip.compress(header + http + b"\r\n\r\n", mtime=0)


def _lists(folder: Path, terms: tuple[generate.Term, ...]) -> None:
    urls = folder / "urls"
    urls.mkdir(parents=True, exist_ok=True)
    (urls / "domains.txt").write_text("# farms\nspam-farm.example\n")
    (urls / "sub_words.txt").write_text("casinobonus\n")
    (urls / "reputation.tsv").write_text("harbour-news.example\t0.9\nspam-farm.example\t0.0\n")
    (folder / "lexicon.tsv").write_text(generate.lexicon_file(terms))
    rows = generate.toxicity(8, 100, terms, "train")
    labelled = (line(row.text, "bad" if row.bad else "good", row.slice) for row in rows)
    (folder / "toxicity.jsonl").write_text("".join(labelled), encoding="utf-8")


def _lines(path: Path, rows: Iterator[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
