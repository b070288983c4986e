"""Repeated lines: exact cuts worked out by hand, agreement with a slow reference, any parts and workers."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from plinth.corpus.curate import apply_edits
from plinth.corpus.dedup import lines
from plinth.corpus.dedup.parameters import LineParameters
from tests.plinth_text.folding import fold_text

A, B, C, D, E = (
    f"{word} is a line, and it is long enough to be counted as a line here"
    for word in ["One", "Two", "Three", "Four", "Five"]
)
LOOSE = {"min_words": 0, "min_share": 0.0}


def made(tiny: Any, buckets: dict[str, list[list[Any]]], range_rows: int = 4_000_000, **params: Any) -> Any:
    corpus = tiny.corpus(buckets)
    corpus.through_exact()
    chosen = LineParameters(**{"boilerplate_documents": None, **LOOSE, **params})
    corpus.lines = lines.run(corpus.ctx, chosen, corpus.documents, corpus.exact, range_rows=range_rows)
    return corpus


def texts(corpus: Any) -> dict[str, str]:
    """Return the remaining text of every surviving document, by name."""
    rows = corpus.rows(corpus.lines)
    listed = [doc for parts in corpus.buckets.values() for docs in parts for doc in docs]
    return {doc.name: apply_edits(doc.text, rows[doc.id]["edits"]) for doc in listed if rows[doc.id]["survivor"]}


def test_the_first_occurrence_stays(tiny: Any) -> None:
    docs = [
        tiny.Doc(f"{A}\n{B}\n", "1"),
        tiny.Doc(f"{C}\n  {A.upper()}  \n\nshort\n", "2"),
        tiny.Doc(f"short\n{B}\n{D}", "3"),
        tiny.Doc(f"{E}\n\n{D}", "4"),
    ]
    corpus = made(tiny, {"b": [docs[2:]], "a": [docs[:1], docs[1:2]]})
    assert texts(corpus) == {"1": f"{A}\n{B}\n", "2": f"{C}\n\nshort\n", "3": f"short\n{D}", "4": f"{E}\n\n"}
    edit = corpus.rows(corpus.lines)[docs[1].id]["edits"]
    start, end = len(C) + 1, len(C) + 1 + len(A) + 5
    assert edit == [{"start_cp": start, "end_cp": end, "replacement": "", "reason": "repeated_line"}]
    stats = corpus.lines.stats
    assert (stats["edited"], stats["edits"], stats["spans"]["repeated_line"], stats["dropped"]) == (3, 3, 3, 0)
    whole = sum(len(doc.text.encode()) for doc in docs)
    assert stats["removed_bytes"] == whole - sum(len(text.encode()) for text in texts(corpus).values())
    assert stats["buckets"]["a"]["edits"] == 1


def test_a_line_may_occur_in_so_many_documents(tiny: Any) -> None:
    docs = [tiny.Doc(f"{A}\nand {word}", word) for word in ["one", "two", "three"]]
    assert texts(made(tiny, {"a": [docs]}, max_documents=3))["three"] == f"{A}\nand three"
    assert texts(made(tiny, {"a": [docs]}, max_documents=2)) == {
        "one": f"{A}\nand one", "two": "and two", "three": "and three",
    }  # fmt: skip
    twice = [tiny.Doc(f"{A}\n{A}\n{B}\n", "twice")]
    assert texts(made(tiny, {"a": [twice]}))["twice"] == f"{A}\n{A}\n{B}\n"  # one document


def test_scopes(tiny: Any) -> None:
    names = ["//x.example/1", "//x.example/2", "//y.example/1"]
    first, second, third = (tiny.Doc(f"{A}\n{name}\n", name) for name in names)
    buckets = {"a": [[first], [third]], "b": [[second]]}
    cut = {scope: set() for scope in ("corpus", "bucket", "domain")}
    for scope, found in cut.items():
        left = texts(made(tiny, buckets, scope=scope, max_documents=1))
        found |= {name for name in names if A not in left[name]}
    assert cut == {"corpus": set(names[1:]), "bucket": {names[2]}, "domain": {names[1]}}


def test_a_line_that_three_documents_of_a_site_share_is_a_quotation(tiny: Any) -> None:
    docs = [tiny.Doc(f"{A}\n//x.example/{n}\n", f"//x.example/{n}") for n in range(4)]
    kept = texts(made(tiny, {"a": [docs[:3]]}, scope="domain"))
    assert all(A in text for text in kept.values())
    assert sum(A in text for text in texts(made(tiny, {"a": [docs]}, scope="domain")).values()) == 1


def test_paragraphs_take_their_short_lines_along(tiny: Any) -> None:
    poem = "roses are red\nviolets are blue\nsugar is sweet\nand so are you\nand so on\n"
    one, two = tiny.Doc(f"{poem}\nBy one\n", "1"), tiny.Doc(f"By two\n\n{poem}\nend\n", "2")
    corpus = made(tiny, {"a": [[one, two]]})
    assert texts(corpus) == {"1": one.text, "2": "By two\n\nend\n"}
    assert corpus.rows(corpus.lines)[two.id]["edits"][0]["reason"] == "repeated_paragraph"
    assert texts(made(tiny, {"a": [[one, two]]}, units=("line",)))["2"] == two.text


def test_boilerplate_goes_everywhere_but_only_at_heads_and_feet_of_one_domain(tiny: Any) -> None:
    def page(host: str, number: int) -> Any:
        body = "\n".join(f"text {number} {host} {i}" for i in range(6))
        return tiny.Doc(f"Home | About\n\n{body}\n\nAll rights reserved", f"//{host}/{number}")

    middle = tiny.Doc("\n".join(["a", "b", "c", "Home | About", "d", "e", "f"]), "//x.example/middle")
    pages = [page("x.example", n) for n in range(5)]
    others = [page("y.example", n) for n in range(4)]
    corpus = made(tiny, {"a": [[*pages, middle], others]}, boilerplate_documents=4, edge_lines=2)
    left = texts(corpus)
    assert [left[doc.name] for doc in pages] == ["\n".join(doc.text.split("\n")[2:-2]) + "\n\n" for doc in pages]
    assert all(left[doc.name] == doc.text for doc in [*others, middle])
    assert corpus.lines.stats["spans"] == {"boilerplate": 10, "repeated_paragraph": 0, "repeated_line": 0}


def test_excluded_buckets_pass_through(tiny: Any) -> None:
    docs = {"code": [[tiny.Doc(f"{A}\none", "1")]], "text": [[tiny.Doc(f"{A}\ntwo", "2")]]}
    corpus = made(tiny, docs, exclude=("code",))
    assert texts(corpus) == {"1": f"{A}\none", "2": f"{A}\ntwo"}
    assert corpus.lines.stats["considered"] == 1


def test_dropped_documents_neither_count_nor_are_cut(tiny: Any) -> None:
    gone, stays = tiny.Doc(f"{A}\nx", "1", fired=("bad",)), tiny.Doc(f"{A}\ny", "2")
    corpus = made(tiny, {"a": [[gone, stays]]})
    assert texts(corpus) == {"2": stays.text}


def reference(docs: Sequence[Any], limit: int) -> dict[str, str]:
    """Lines of one paragraph each, cut by a dictionary."""
    owners: dict[str, set[str]] = {}
    for doc in docs:
        for line in doc.text.split("\n"):
            owners.setdefault(fold_text(line), set()).add(doc.name)
    seen: set[str] = set()
    left = {}
    for doc in docs:
        kept = []
        for line in doc.text.split("\n")[:-1]:
            key = fold_text(line)
            if len(key.replace(" ", "")) < 5 or len(owners[key]) <= limit or key not in seen:
                kept.append(line + "\n")
            seen.add(key)
        left[doc.name] = "".join(kept)
    return left


@pytest.mark.parametrize(
    ("parts", "range_rows"), [(1, 10**6), pytest.param(7, 10**6, marks=pytest.mark.exhaustive), (7, 9)]
)
def test_agrees_with_a_dictionary_whatever_the_parts(tiny: Any, parts: int, range_rows: int) -> None:
    rng = random.Random(5)
    pool = [
        " ".join(rng.choice(["Ünï", "wörd", "日本", "x", "😀y"]) for _ in range(rng.randint(1, 4))) for _ in range(60)
    ]
    docs = [
        tiny.Doc("".join(f"{rng.choice(pool)}\n" for _ in range(rng.randint(1, 12))) + f"end {n}\n", str(n))
        for n in range(40)
    ]
    size = -(-len(docs) // parts)
    buckets = {"a": [docs[i : i + size] for i in range(0, len(docs), size)]}
    corpus = made(tiny, buckets, range_rows, units=("line",), min_characters=5, max_documents=2)
    survivors = [doc for doc in docs if corpus.rows(corpus.exact)[doc.id]["survivor"]]
    assert texts(corpus) == reference(survivors, 2)
