"""Croissant metadata: valid for mlcroissant, records equal to the export, every sentence read from its evidence."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plinth.compute.context import Context, manifest
from plinth.corpus.slices.rates import LabelledOutcome, by_slice
from plinth.records import Manifest, Step
from plinth_audit.text_export import croissant, responsible_ai
from tests.judged_corpus import PLANTED
from tests.peers import Peer
from tests.plinth_audit.text_export.conftest import card_of, run

pd = Peer("pandas")

WANTED_OF_A_PUBLISHER = {"version", "citeAs", "datePublished"}


def opened(folder: Path) -> Any:
    return pytest.importorskip("mlcroissant").Dataset(str(folder / "croissant.json"))


def metadata(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "croissant.json").read_bytes()))


def plain(value: Any) -> Any:
    """A value of mlcroissant as the export's Parquet files have it: text is given as bytes, missing values as NaN."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [plain(one) for one in value]
    if value is None or value is pd.NaT or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    return value.to_pydatetime() if isinstance(value, pd.Timestamp) else value


def rounded(value: Any) -> Any:
    return round(float(value), 6) if isinstance(value, float | np.floating) else value


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz"])
def test_mlcroissant_reads_the_records_of_the_export(ctx: Context, tmp_path: Path, kind: str) -> None:
    run(ctx, tmp_path, kind)
    run(ctx, tmp_path / "parquet")
    dataset = opened(tmp_path)
    issues = dataset.metadata.ctx.issues
    assert not issues.errors
    assert {re.search(r"(\w+)\" is recommended", one).group(1) for one in issues.warnings} == WANTED_OF_A_PUBLISHER  # type: ignore[union-attr]
    assert dataset.metadata.conforms_to == list(croissant.CONFORMS_TO)
    for bucket in PLANTED:
        found = [
            {name.partition("/")[2]: plain(value) for name, value in row.items()} for row in dataset.records(bucket)
        ]
        paths = sorted((tmp_path / "parquet/data" / bucket).glob("*.parquet"))
        wanted = [row for path in paths for row in pq.read_table(path).to_pylist()]
        if kind != "parquet":  # pandas, which mlcroissant reads JSON with, parses floats to the last digit but one
            wanted = [{name: value for name, value in row.items() if name != "metadata"} for row in wanted]
            found, wanted = ([{name: rounded(value) for name, value in row.items()} for row in rows]
                             for rows in (found, wanted))  # fmt: skip
        assert found == wanted


def test_every_file_is_listed_with_its_digest(ctx: Context, tmp_path: Path) -> None:
    made = run(ctx, tmp_path)
    listed = {one["@id"]: one for one in metadata(tmp_path)["distribution"] if one["@type"] == "cr:FileObject"}
    assert set(listed) == set(made.files) - {"croissant.json"}
    for name, one in listed.items():
        data = (tmp_path / name).read_bytes()
        assert (one["sha256"], one["contentSize"]) == (hashlib.sha256(data).hexdigest(), f"{len(data)} B")
    assert metadata(tmp_path)["license"] == ["https://spdx.org/licenses/MIT"]
    derived = {one["prov:label"]: one["@id"] for one in metadata(tmp_path)["prov:wasDerivedFrom"]}
    assert derived == {asset: f"urn:sha256:{digest}" for asset, digest in made.inputs.items()}
    own = (tmp_path / "croissant.json").read_bytes()
    assert made.files["croissant.json"].sha256 == hashlib.sha256(own).hexdigest()


def test_every_sentence_is_read_from_the_manifest_that_it_names(ctx: Context, tmp_path: Path) -> None:
    outcomes = [
        LabelledOutcome("en", bad, removed, 10) for bad, removed in [(True, True), (False, True), (False, False)]
    ]
    step = Step(name="slices", version="1")
    real = manifest("slices/quality", step, {}, (), {"slices": by_slice(outcomes), "real": {"en": 3}})
    generated = manifest("slices/toxicity", step, {}, (), {"slices": by_slice(outcomes), "real": {"en": 0}})
    counts = {"documents": 55, "fired": 11, "bytes": 1000, "fired_bytes": 100}
    rules = [{"rule": "quality.score < 0.1", "buckets": {"web": counts}}]
    removals = manifest("removal_rates", Step(name="removal_rates", version="1"), {}, (), {"rules": rules})
    for one in (real, generated, removals):
        ctx.refs.save(one)
    given = {"slices/quality": real, "slices/toxicity": generated, "removal_rates": removals}
    card = card_of(ctx, {"personal data": "screened", "opt-outs": "not screened"}, **given)
    ctx.refs.save(card)
    made = run(ctx, tmp_path, card=card)
    found = {name: value for name, value in metadata(tmp_path).items() if name.startswith("rai:")}
    sentences = [one for value in found.values() for one in ([value] if isinstance(value, str) else value)]
    named = {pair for one in sentences for pair in re.findall(r"evidence: (\S+), SHA-256 ([0-9a-f]{64})", one)}
    assert all(ctx.refs.load(digest).asset == asset for asset, digest in named)
    assert {digest for _, digest in named} <= {*made.inputs.values(), *card.inputs.values(), _ledger(ctx).digest}
    web = ctx.refs.current("web/verdicts").digest
    assert _without_evidence(found["rai:dataPreprocessingProtocol"])[:2] == [
        "web, policy: 9 of 55 documents removed: 3 licence (rule `not licence.permitted`), "
        "6 too_few_words (rule `gopher_quality.word_count < 20`)",
        "web, exact: 4 of 46 documents removed: 4 exact_duplicate",
    ]
    assert web in found["rai:dataPreprocessingProtocol"][0]
    assert _without_evidence(found["rai:personalSensitiveInformation"]) == [
        "personal data: screened", "web: 2 spans of pii.spans replaced", "prose: 0 spans of pii.spans replaced",
    ]  # fmt: skip
    assert "opt-outs: not screened" in _without_evidence(found["rai:dataLimitations"])
    rates = "recall (95%) 100.0% (20.7-100.0), false positives (95%) 50.0% (9.5-90.5), over-removal 50.0%"
    rates = f"good 2, bad 1, {rates}"
    assert _without_evidence(found["rai:dataBiases"]) == [
        "web: `quality.score < 0.1` removes 11 of 55 documents (20.0%, 95%: 11.6-32.4), 10.0% of the bytes",
        f"quality on slice all: {rates}",
        f"quality on slice en: {rates}",
    ]
    own = opened(tmp_path).metadata
    assert own.data_collection == found["rai:dataCollection"]
    assert set(own.personal_sensitive_information) == set(found["rai:personalSensitiveInformation"])
    assert set(own.data_biases) == set(found["rai:dataBiases"])


def test_what_has_no_evidence_is_left_out(ctx: Context, tmp_path: Path) -> None:
    run(ctx, tmp_path, buckets=("prose",))
    found = metadata(tmp_path)
    absent = {"rai:dataCollectionType", "rai:dataCollectionTimeframe", "rai:dataBiases", "rai:dataManipulationProtocol"}
    assert not absent & set(found)  # no crawl, no dates, no learned filter, no language, no edit in this bucket
    assert "personal data" not in json.dumps(found["rai:personalSensitiveInformation"])
    assert {one["@id"] for one in found["recordSet"]} == {"prose"}


def test_days_of_capture_and_crawls_are_stated(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responsible_ai, "CRAWLED", ("text",))
    days = {"data/web/train-0": {"2026-11-02": 3, "2026-10-30": 1}, "data/web/train-1": {"2026-12-01": 1}}
    files = {
        name: responsible_ai.ExportFile(key="", bytes=1, sha256="0" * 64, captured=own) for name, own in days.items()
    }
    curated = {"web": ctx.refs.current("web/curated")}
    card = ctx.refs.current("data_card")
    text = responsible_ai.ExportedText("judged", "parquet", files, {}, curated, card, _ledger(ctx), {})
    found = responsible_ai.responsible_ai(ctx, text)
    assert found["rai:dataCollectionTimeframe"] == ["2026-10-30", "2026-12-01"]
    assert found["rai:dataCollectionType"] == ["Web Scraping"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.large_string(), "sc:Text"),
        (pa.bool_(), "sc:Boolean"),
        (pa.timestamp("us", tz="UTC"), "sc:DateTime"),
        (pa.int32(), "cr:Int32"),
        (pa.uint64(), "cr:UInt64"),
        (pa.float32(), "cr:Float32"),
    ],
)
def test_types_of_columns(kind: pa.DataType, name: str) -> None:
    assert croissant.data_type(kind) == name


def test_licenses_with_an_address() -> None:
    own = ["MIT", "GPL-3.0-only", "MIT OR Apache-2.0", "LicenseRef-mine", "unknown"]
    address = "https://spdx.org/licenses/"
    assert [croissant.licence(one) for one in own] == [f"{address}MIT", f"{address}GPL-3.0-only", *own[2:]]


def test_datasets_streams_the_folder_and_resumes(ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    datasets = pytest.importorskip("datasets")
    made = run(ctx, tmp_path / "out")
    stream = datasets.load_dataset(str(tmp_path / "out"), "default", split="train", streaming=True)
    whole = [row["id"] for row in stream]
    assert len(whole) == len(set(whole)) == sum(file.documents for file in made.files.values())
    taken = list[str]()
    for row in stream:
        taken.append(row["id"])
        state = json.loads(json.dumps(stream.state_dict()))
        if len(taken) == 25:  # within the second of four files
            break
    again = datasets.load_dataset(str(tmp_path / "out"), "default", split="train", streaming=True)
    again.load_state_dict(state)
    assert [*taken, *(row["id"] for row in again)] == whole


def _ledger(ctx: Context) -> Manifest:
    return ctx.refs.current("ledger")


def _without_evidence(sentences: list[str]) -> list[str]:
    return [one.rpartition(" (evidence: ")[0] for one in sentences]
