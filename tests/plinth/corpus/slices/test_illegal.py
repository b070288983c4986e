"""The gate of illegal content by slice: all that its lists name, exact where the truth is exact; the annotator."""

import json
from typing import Any

import pytest

from plinth.corpus import annotate, lists
from plinth.corpus.slices import evaluate, generate, measured_gates
from plinth.corpus.slices.measured_gates import measured_gate, rule_of
from plinth.corpus.slices.rates import GateSlices
from plinth.records import Manifest
from plinth.storage.parts import read_table


def listed(ctx: Any, files: dict[str, str]) -> Manifest:
    folder = ctx.workspace.input / "illegal"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return lists.run(ctx, "illegal", "illegal")


def measured(tiny: Any, files: dict[str, str], **params: Any) -> Manifest:
    given = GateSlices(removes="illegal.hit", documents_per_slice=48)
    rule = rule_of(measured_gate("illegal"), given, {}, {"illegal": {}})
    resources = {"lists/illegal": listed(tiny.ctx, files)}
    return evaluate.run(tiny.ctx, "illegal", given, rule, {"illegal": params}, resources, {})


def test_recall_false_positives_and_over_removal(tiny: Any) -> None:
    made = measured(tiny, measured_gates.lists())
    kinds = {name: (row["removed"], row["documents"]) for name, row in made.stats["made_as"].items()}
    count = 12 * len(generate.SLICES)
    for name in ("keyword", "copy", "reported"):  # a list knows no context: what is reported goes, too
        assert kinds[name] == (count, count)
    for name in ("plain", "apart", "quoting"):
        assert kinds[name] == (0, count)
    assert kinds["one_word"][0] >= 0.95 * count
    assert 0.5 * count <= kinds["one_percent"][0] <= 0.9 * count
    for name in ("all", *generate.SLICES):
        row = made.stats["slices"][name]
        assert row["false_positive"] == 0.25
        assert 0.2 < row["over_removal"] < 0.3
        assert row["recall"] > 0.8


def test_a_wider_bound_finds_more_edits(tiny: Any) -> None:
    near = {"simhash.txt": measured_gates.lists()["simhash-invented.txt"]}
    removed = [measured(tiny, near, simhash_distance=bits).stats["made_as"] for bits in (0, 3, 7)]
    edited = [row["one_percent"]["removed"] for row in removed]
    assert edited == sorted(edited)
    assert edited[0] < edited[1] < edited[2]
    assert "keyword" not in removed[0]  # no list names one, so none is planted


def test_lists_that_name_nothing_that_can_be_planted(tiny: Any) -> None:
    made = measured(tiny, {"sha256.txt": "ab" * 32})
    assert made.stats["slices"]["all"]["bad"] == 0
    assert made.stats["slices"]["all"]["removed_good"] == 0


def test_the_annotator_tells_of_stored_documents(tiny: Any) -> None:
    known = measured_gates.known()[0].text
    docs = [tiny.Doc("nothing"), tiny.Doc("a flobrik here"), tiny.Doc(known)]
    documents = tiny.corpus({"web": [docs]}).documents["web"]
    files = measured_gates.lists() | {"keywords.txt": "flobrik\ttrade\n"}
    made = annotate.run(tiny.ctx, "web", "illegal", {}, documents, {"lists/illegal": listed(tiny.ctx, files)})
    nothing, word, copy = read_table(tiny.ctx.store, made.parts[0]).to_pylist()
    assert (nothing["hit"], nothing["list"], nothing["simhash_distance"]) == (False, None, None)
    assert (word["hit"], word["keyword_hits"], word["list"]) == (True, 1, "keywords.txt")
    assert (copy["hit"], copy["sha256_hit"], copy["simhash_distance"]) == (True, True, 0)
    assert copy["list"] == "sha256-invented.txt"


@pytest.mark.parametrize("media", [None, [{"sha256": "ab" * 32}], [{"phash": "0123456789abcdef"}]])
def test_the_annotator_reads_media_of_extra(tiny: Any, media: Any) -> None:
    import pyarrow as pa

    from plinth.corpus.annotate.blocklists import IllegalParams, annotate_illegal, prepare_illegal

    made = listed(tiny.ctx, {"sha256.txt": "ab" * 32, "phash.txt": "0123456789abcdee"})
    files = {"lists/illegal": {part.name: tiny.ctx.store.open_path(part.blob) for part in made.parts}}
    batch = pa.record_batch({"text": ["a"], "uri": ["b"], "extra": [json.dumps({"media": media} if media else {})]})
    (row,) = annotate_illegal(batch, prepare_illegal(IllegalParams(), files)).to_pylist()
    assert row["hit"] == bool(media)
    assert row["phash_hit"] == ("phash" in str(media))
    assert row["sha256_hit"] == ("sha256" in str(media))
