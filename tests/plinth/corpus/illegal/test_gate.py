"""The gate in the documents stage: hits are reported and not stored, with any worker and in any order."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.engine import InlineEngine, LocalEngine
from plinth.corpus import illegal_gate
from plinth.corpus import lists as lists_stage
from plinth.corpus.documents import documents
from plinth.corpus.illegal import Matcher, read
from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Documents, Illegal, Matching
from plinth.errors import MissingError, RejectRateError, SourceError
from plinth.records import Manifest
from plinth.storage.parts import REJECT_SCHEMA, read_table
from plinth_text.similarity import simhashes
from tests.plinth.corpus.source_folder import SourceFolder

CANARY = "quetzalgroth"
LONG = " ".join(f"word{number} and{number % 7}" for number in range(300))
PHASH = 0x0123456789ABCDEF


def sha256(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def simhash(text: str, words: int = 3) -> int:
    return int(simhashes(pa.array([text], pa.large_string()), words)[0][0])


def turned(value: int, bits: int) -> str:
    """Return a hash that differs in `bits` bits, spread over all blocks."""
    return f"{value ^ sum(1 << (bit * 17 % 64) for bit in range(bits)):016x}"


class Corpus(SourceFolder):
    """With lists."""

    def lines(self, *records: Mapping[str, Any]) -> None:
        self.write("jsonl/a.jsonl", "".join(json.dumps(one) + "\n" for one in records))

    def lists(self, **files: str) -> Mapping[str, Manifest]:
        for name, text in files.items():
            self.write(f"lists/{name}.txt", text)
        return {"lists/illegal": lists_stage.run(self.ctx, "illegal", str(self.root / "lists"))}

    def run(self, lists: Mapping[str, Manifest], *kinds: str, rate: float = 0.5, **params: Any) -> Manifest:
        bucket = self.bucket(*(kinds or ("jsonl",)))
        chosen = illegal_gate.gate_of(Illegal.model_validate({"lists": "illegal", **params}), lists) if lists else None
        stage = Documents(part_bytes=3000, max_reject_rate=rate)
        return documents.run(self.ctx, "b", bucket, stage, inventory(bucket, self.root), chosen, lists)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


def stored(root: Path) -> bytes:
    """Everything in a folder, Parquet read column by column and gzip inflated."""
    found = []
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        found += [str(path).encode(), data]
        if data[:4] == b"PAR1":
            table = pq.read_table(path)
            found += [repr(table.column(name).to_pylist()).encode() for name in table.column_names]
            found.append(repr(pq.read_schema(path).metadata).encode())
        if data[:2] == b"\x1f\x8b":
            found.append(gzip.decompress(data))
    return b"\n".join(found)


def test_each_kind_of_hit_becomes_a_report(corpus: Corpus) -> None:
    names = ("exact", "near", "image", "file", "word", "host", "raw")
    text = {name: f"{CANARY} {LONG.replace('word', name)}" for name in names}
    corpus.lines(
        {"text": text["exact"] + "  ", "url": "https://a.example/secret-title"},
        {"text": text["near"]},
        {"text": text["image"], "media": [{"sha256": "ab" * 32}, {"phash": turned(PHASH, 3)}]},
        {"text": text["file"], "media": [{"sha256": "CD" * 32}]},
        {"text": f"{text['word']} Flobrik, zanmox!"},
        {"text": text["host"], "url": "https://deep.bad.example/x"},
        {"text": "An innocent document.", "url": "https://good.example/"},
    )
    corpus.write("html/x.html", f"<html><body><p>{text['raw']}</p></body></html>")
    listed = corpus.lists(
        sha256=f"{sha256(text['exact'])}\n{'cd' * 32}\n{sha256((corpus.root / 'html/x.html').read_bytes())}\n",
        simhash=f"{turned(simhash(text['near']), 3)}\n",
        phash=f"{PHASH:016x}\n",
        keywords="flobrik zanmox\ttrade\n",
        domains="bad.example\n",
    )
    made = corpus.run(listed, "jsonl", "html")
    assert [row["text"] for row in corpus.rows(made, "part-")] == ["An innocent document."]
    told = corpus.rows(made, "quarantine-")
    assert [(row["kind"], row["list"], row["line"], row["distance"], row["category"]) for row in told] == [
        ("sha256_text", "sha256.txt", 1, None, None),
        ("simhash", "simhash.txt", 1, 3, None),
        ("phash", "phash.txt", 1, 3, None),
        ("sha256_media", "sha256.txt", 2, None, None),
        ("keyword", "keywords.txt", 1, None, "trade"),
        ("domain", "domains.txt", 1, None, None),
        ("sha256_record", "sha256.txt", 3, None, None),
    ]
    assert [row["where"] for row in told] == [*(f"line {number}" for number in range(1, 7)), "file"]
    assert {row["file"] for row in told} == {"a.jsonl", "x.html"}
    assert told[0]["record_sha256"] == sha256(text["exact"] + "  ")
    assert told[0]["uri_sha256"] == sha256("https://a.example/secret-title")
    assert told[0]["entry_sha256"] == sha256(sha256(text["exact"]))
    assert (told[0]["host"], told[0]["uri"], told[0]["bucket"]) == ("a.example", None, "b")
    rejects = corpus.rows(made, "rejects-")
    assert {row["reason"] for row in rejects} == {"illegal_content"}
    assert rejects[0]["uri"] == f"sha256:{sha256('https://a.example/secret-title')}@a.example"
    assert rejects[0]["detail"] == "sha256.txt: sha256_text"
    assert rejects[4]["detail"] == "keywords.txt: keyword of category trade"
    assert made.stats["rejects"] == {"illegal_content": 7}
    assert made.stats["reject_rate"] == 0.0
    lists = {"domains.txt": 1, "keywords.txt": 1, "phash.txt": 1, "sha256.txt": 3, "simhash.txt": 1}
    assert made.stats["quarantine"]["records"] == 7
    assert made.stats["quarantine"]["lists"] == lists
    assert made.inputs["lists/illegal"] == listed["lists/illegal"].digest
    everything = stored(corpus.ctx.workspace.root)
    assert CANARY.encode() not in everything
    assert b"secret-title" not in everything
    assert b"innocent" in everything


def test_without_the_gate_the_same_text_is_stored(corpus: Corpus) -> None:
    corpus.lines({"text": f"{CANARY} is here"})
    made = corpus.run({})
    assert made.rows == 1
    assert "quarantine" not in made.stats
    assert CANARY.encode() in stored(corpus.ctx.workspace.root)


@pytest.mark.parametrize(("bits", "hits"), [(0, 1), (3, 1), (4, 0)])
def test_the_edge_of_the_bounds(corpus: Corpus, bits: int, hits: int) -> None:
    corpus.lines({"text": LONG, "media": [{"phash": turned(PHASH, bits)}]}, {"text": "another"})
    listed = corpus.lists(simhash=turned(simhash(LONG), bits), phash=f"{PHASH:016x}")
    made = corpus.run(listed)
    assert made.stats["quarantine"]["records"] == hits
    assert [row["kind"] for row in corpus.rows(made, "quarantine-")] == ["simhash", "phash"] * hits
    assert corpus.run(listed, simhash_distance=bits, phash_distance=bits).stats["quarantine"]["records"] == 1


def test_quarantine_is_no_failure_to_parse(corpus: Corpus) -> None:
    corpus.lines({"text": "one"}, *({"text": f"flobrik {number}"} for number in range(9)))
    listed = corpus.lists(keywords="flobrik\ttrade\n")
    made = corpus.run(listed, rate=0.0)
    assert (made.stats["documents"], made.stats["reject_rate"]) == (1, 0.0)
    corpus.write("jsonl/b.jsonl", "no json\n")
    with pytest.raises(RejectRateError) as error:
        corpus.run(listed, rate=0.4)
    assert "broken_record 1" in str(error.value)
    assert "illegal" not in str(error.value)


def test_a_second_copy_is_told_as_the_first(corpus: Corpus) -> None:
    row = {"text": "flobrik", "url": "https://a.example/secret-title"}
    corpus.lines(row, row, {"text": "fine"})
    made = corpus.run(corpus.lists(keywords="flobrik\ttrade\n"))
    assert made.stats["rejects"] == {"illegal_content": 2}
    assert b"secret-title" not in stored(corpus.ctx.workspace.root)


def test_addresses_only_where_the_recipe_keeps_them(corpus: Corpus) -> None:
    corpus.lines({"text": "flobrik", "url": "https://a.example/x"}, {"text": "fine"})
    listed = corpus.lists(keywords="flobrik\ttrade\n")
    made = corpus.run(listed, keep_uri=True)
    assert corpus.rows(made, "quarantine-")[0]["uri"] == "https://a.example/x"
    assert corpus.rows(made, "rejects-")[0]["uri"] == "https://a.example/x"
    assert made.digest != corpus.run(listed).digest


def test_keywords_may_have_to_be_several(corpus: Corpus) -> None:
    corpus.lines({"text": "flobrik flobrik"}, {"text": "flobrik vexnuk"}, {"text": "fl0brik v.e.x.n.u.k"})
    listed = corpus.lists(keywords="flobrik\ttrade\nvexnuk\ttrade\n")
    assert corpus.run(listed).stats["quarantine"]["records"] == 2
    assert corpus.run(listed, min_keywords=2).stats["quarantine"]["records"] == 1
    assert corpus.run(listed, min_keywords=2, disguised=True).stats["quarantine"]["records"] == 2


def test_a_list_that_grew_takes_the_documents_again(corpus: Corpus) -> None:
    corpus.lines({"text": "flobrik"}, {"text": "vexnuk"}, {"text": "fine"})
    before = corpus.run(corpus.lists(keywords="flobrik\ttrade\n"))
    after = corpus.run(corpus.lists(keywords="flobrik\ttrade\nvexnuk\ttrade\n"))
    assert (before.stats["documents"], after.stats["documents"]) == (2, 1)
    assert before.digest != after.digest


def test_media_that_cannot_be_compared_are_rejects(corpus: Corpus) -> None:
    corpus.lines(
        {"text": "a", "media": [{"phash": "12"}]}, {"text": "b", "media": "press"}, {"text": "c", "media": [1]}
    )
    made = corpus.run({}, rate=0.9)
    assert [row["text"] for row in corpus.rows(made, "part-")] == ["b", "c"]
    (reject,) = corpus.rows(made, "rejects-")
    assert (reject["reason"], reject["detail"]) == ("broken_record", "media[0].phash is not 16 hexadecimal digits")


def test_media_of_parquet(corpus: Corpus) -> None:
    media = [[{"sha256": "ab" * 32, "phash": None}], None]
    (corpus.root / "parquet").mkdir()
    pq.write_table(pa.table({"text": ["one", "two"], "media": media}), corpus.root / "parquet/a.parquet")
    made = corpus.run(corpus.lists(sha256="ab" * 32), "parquet")
    assert [row["text"] for row in corpus.rows(made, "part-")] == ["two"]


def test_without_its_lists_nothing_passes(corpus: Corpus) -> None:
    with pytest.raises(MissingError, match="lists/illegal"):
        illegal_gate.gate_of(Illegal(lists="illegal"), {})
    corpus.lines({"text": "fine"})
    with pytest.raises(SourceError, match="line 1"):
        corpus.run(corpus.lists(sha256="not a digest"))


@pytest.mark.exhaustive
def test_workers_do_not_show(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        with LocalEngine(2) as engine:
            corpus = Corpus(tmp_path / name, InlineEngine() if name == "one" else engine)
            for number in range(40):
                corpus.write(
                    f"text/{number:02d}.txt", f"{'flobrik' if number % 5 == 0 else 'fine'} {number} {LONG[:400]}"
                )
            made.append(corpus.run(corpus.lists(keywords="flobrik\ttrade\n"), "text"))
            assert len(made[-1].named("quarantine-")) > 1
            assert made[-1].named("quarantine-")[0].blob is not None
    assert made[0].digest == made[1].digest
    assert made[0].stats["quarantine"]["records"] == 8


def test_schemas(corpus: Corpus) -> None:
    corpus.lines({"text": "flobrik"}, {"text": "fine"})
    made = corpus.run(corpus.lists(keywords="flobrik\ttrade\n"))
    assert read_table(corpus.ctx.store, made.named("quarantine-")[0]).schema.equals(illegal_gate.SCHEMA)
    assert read_table(corpus.ctx.store, made.named("rejects-")[0]).schema.equals(REJECT_SCHEMA)


WORDS = ("flobrik", "vexnuk", "zanmox", "fine", "Fine-day", "über")


@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=1, max_size=8), st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_it_agrees_with_a_slow_reference(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], least: int
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    keywords = ("flobrik", "vexnuk zanmox", "über fine")
    digests = {sha256("fine"), sha256("")}
    (folder / "keywords").write_text("".join(f"{one}\ttrade\n" for one in keywords))
    (folder / "sha256").write_text("\n".join(sorted(digests)))
    near = simhash("fine fine fine fine")
    (folder / "simhash").write_text(f"{near:016x}")
    params = Matching(min_keywords=least, simhash_distance=7)
    matcher = Matcher(read({name.name: name for name in folder.iterdir()}, "lists/x", params), params)
    found = matcher.texts(pa.array(texts, pa.large_string()), [""] * len(texts), [None] * len(texts))
    for text, hits in zip(texts, found, strict=True):
        expected = ["sha256_text"] if sha256(text) in digests else []
        expected += ["simhash"] if text and bin(simhash(text) ^ near).count("1") <= 7 else []
        words = re.findall(r"\w+", text.lower())
        spans = {
            one for one in keywords for at in range(len(words)) if words[at : at + len(one.split())] == one.split()
        }
        expected += ["keyword"] * (len(spans) if len(spans) >= least else 0)
        assert [hit.kind for hit in hits] == expected
