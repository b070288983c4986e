"""Documents without what was taken down: counted rejects, near duplicates included, and only touched parts are new."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus.documents import documents
from plinth.corpus.exclusions import Alike, Exclusion, overlap, sign_texts
from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket, Documents, Source, Terms
from plinth.corpus.sources.record import TAKEDOWN, damage
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace

WORDS = [f"{a}{b}" for a in ("river", "stone", "cloud", "field", "house") for b in ("song", "side", "work", "light")]
FILES, LINES = 6, 4
LICENCES = ["MIT OR GPL-3.0-only", "MIT", "MIT", "Apache-2.0"]


def essay(seed: int, words: int = 120) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def entry(number: int = 1, **fields: Any) -> Exclusion:
    base = {"number": number, "prior": None, "found": 0, "by": "anna", "reason": "asked", "at": "2026-11-23T07:00:00Z"}
    return Exclusion.model_validate(base | fields)


def of_text(text: str, number: int = 1) -> Exclusion:
    texts = sign_texts([text], Alike())
    return entry(number, kind="text", value=texts[0].digest, texts=texts)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six files of four lines; each file becomes one part."""
    for file in range(FILES):
        lines = [
            {"uri": f"https://h{file}.example.org/{n}", "text": essay(10 * file + n), "licence": LICENCES[n]}
            for n in range(LINES)
        ]
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{file}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def made(root: Path, *entries: Exclusion) -> tuple[Context, Manifest]:
    ctx = Context(Workspace(root / "workspace").ensure())
    terms = Terms(train=True, redistribute=True, commercial=True)
    facts = {"kind": "jsonl", "path": "in", "licence": "per-document", "domain": "d", "snapshot": "s"}
    source = Source.model_validate({**facts, "terms": terms})
    bucket = Bucket(description="", owner="o", sources=(source,))
    params = Documents(part_bytes=10)
    return ctx, documents.run(ctx, "web", bucket, params, inventory(bucket, root), exclusions=entries)


def uris(ctx: Context, manifest: Manifest, stem: str = "part-") -> set[str]:
    return {row["uri"] for part in manifest.named(stem) for row in read_table(ctx.store, part).to_pylist()}


def touched(before: Manifest, after: Manifest) -> int:
    """Parts of documents that are other bytes than before."""
    known = {part.blob.sha256 for part in before.named("part-")}
    return sum(part.blob.sha256 not in known for part in after.named("part-"))


def test_one_address_costs_one_part_and_is_a_counted_reject(root: Path) -> None:
    _, before = made(root)
    ctx, after = made(root, entry(kind="url", value="h2.example.org/3"))
    assert uris(ctx, before) - uris(ctx, after) == {"https://h2.example.org/3"}
    assert touched(before, after) == 1
    assert ctx.costs["documents/takedown"].tasks == 1
    assert ctx.costs["documents"].tasks == 0
    assert after.stats["rejects"] == {TAKEDOWN: 1}
    assert after.stats["takedown"] == {"1": 1}
    assert after.stats["reject_rate"] == 0
    assert damage(after.stats["rejects"]) == 0
    (reject,) = read_table(ctx.store, next(part for part in after.named("rejects-") if part.rows)).to_pylist()
    assert reject["reason"] == TAKEDOWN
    assert reject["detail"].startswith("entry 1 takes ")
    kept = [row for part in after.named("part-") for row in read_table(ctx.store, part).to_pylist()]
    assert after.stats["documents"] == len(kept) == FILES * LINES - 1
    assert after.stats["text_bytes"] == sum(len(row["text"].encode()) for row in kept)


def test_an_entry_that_takes_nothing_leaves_the_very_manifest(root: Path) -> None:
    _, before = made(root)
    _, after = made(root, entry(kind="domain", value="example.com"), of_text(essay(999), 2))
    assert after.digest == before.digest


def test_what_takes_something_is_an_input_by_its_rule_not_by_its_person(root: Path) -> None:
    rule = {"kind": "url", "value": "h2.example.org/3"}
    _, one = made(root, entry(**rule))
    _, same = made(root, entry(**rule, by="ben", reason="asked again", found=7))
    assert one.digest == same.digest
    assert TAKEDOWN in one.inputs
    _, other = made(root, entry(2, **rule))
    assert other.inputs[TAKEDOWN] != one.inputs[TAKEDOWN]


@pytest.mark.parametrize(
    ("rule", "gone", "parts"),
    [
        ({"kind": "domain", "value": "h4.example.org"}, LINES, 0),
        ({"kind": "licence", "value": "gpl-3.0-only"}, FILES, FILES),
    ],
)
def test_rules_take_all_that_they_cover(root: Path, rule: dict[str, str], gone: int, parts: int) -> None:
    _, before = made(root)
    _, after = made(root, entry(**rule))
    assert after.stats["documents"] == FILES * LINES - gone
    assert touched(before, after) == parts


def test_a_document_by_its_id(root: Path) -> None:
    ctx, before = made(root)
    row = read_table(ctx.store, before.named("part-")[3]).to_pylist()[1]
    for rule in ({"kind": "document", "value": row["id"].hex()},
                 {"kind": "text", "value": "0" * 32, "documents": [row["id"].hex()]}):  # fmt: skip
        _, after = made(root, entry(**rule))
        assert uris(ctx, before) - uris(ctx, after) == {row["uri"]}


def variant(text: str, how: str) -> str:
    words = text.split()
    if how == "same":
        return text.upper().replace(" ", "\n")
    if how == "edited":
        return " ".join([*words[:60], "different", *words[61:]])
    if how == "quoted":
        return f"{essay(77, 400)} {text} {essay(78, 400)}"
    return " ".join(words[20:90])  # an excerpt


@pytest.mark.parametrize("how", ["same", "edited", "quoted", "excerpt"])
def test_near_duplicates_quotations_and_excerpts_stay_out_of_a_later_snapshot(root: Path, how: str) -> None:
    taken = essay(21)
    (root / "in" / "later.jsonl").write_text(json.dumps({"uri": "https://new.example/x", "text": variant(taken, how)}))
    ctx, before = made(root)
    assert {"https://new.example/x", "https://h2.example.org/1"} <= uris(ctx, before)
    _, after = made(root, of_text(taken))
    assert uris(ctx, before) - uris(ctx, after) == {"https://new.example/x", "https://h2.example.org/1"}


def test_a_short_text_takes_only_what_equals_it(root: Path) -> None:
    phrase = " ".join(essay(21).split()[:10])
    (root / "in" / "later.jsonl").write_text(json.dumps({"uri": "short", "text": phrase.title()}))
    ctx, before = made(root)
    _, after = made(root, of_text(phrase))
    assert uris(ctx, before) - uris(ctx, after) == {"short"}


def test_a_list_that_takes_a_row_twice_counts_it_once(root: Path) -> None:
    ctx, after = made(root, of_text(essay(21)), entry(2, kind="url", value="h2.example.org/1"))
    assert after.stats["takedown"] == {"2": 1}
    assert after.stats["rejects"] == {TAKEDOWN: 1}
    assert "https://h2.example.org/1" not in uris(ctx, after)


def test_overlap_is_of_the_smaller_set_and_needs_enough_of_it() -> None:
    (whole,) = sign_texts([essay(1)], Alike())
    (part,) = sign_texts([" ".join(essay(1).split()[:60])], Alike())
    (few,) = sign_texts([" ".join(essay(1).split()[:20])], Alike())
    assert overlap(whole.set, part.set) == 1.0
    assert few.shingles == ""
    assert overlap(whole.set, whole.set[:19]) == 0.0
