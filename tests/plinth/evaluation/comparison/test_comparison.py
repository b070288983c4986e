"""Two models side by side, on measurements that are known."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, StageError
from plinth.evaluation.comparison import job, pairs
from plinth.evaluation.comparison.differences import Difference, corrected, in_order, of_measure, result_text
from plinth.evaluation.comparison.job import MeasuredModel, extremes, seen_items
from plinth.evaluation.comparison.models import changes, weights
from plinth.evaluation.comparison.pairs import Pairs, align, largest_slices
from plinth.evaluation.slices.tables import SpanDifference
from plinth.records import Manifest
from plinth.report.evaluation import EvaluationData, comparison_page, section
from plinth.report.evaluation import page as evaluation_page
from plinth.report.page import Next
from plinth.storage.parts import read_table, write_table

SIZES = [400, 1200, 900, 2500, 600, 800, 1500, 300, 700, 1100, 950, 450, 3000, 820, 640]


def documents(rates: Sequence[float], **more: Sequence[Any]) -> dict[str, dict[str, Any]]:
    return {
        f"d{i:02}": {"value": rate * size, "weight": size, **{name: values[i] for name, values in more.items()}}
        for i, (rate, size) in enumerate(zip(rates, SIZES, strict=True))
    }


def bits(a: Sequence[float], b: Sequence[float], **more: Sequence[Any]) -> Pairs:
    sides = documents(a, **more), documents(b, **more)
    return aligned("slices", "bits per byte", *sides, fewer_is_better=True, ratio=True)


def aligned(kind: str, measure: str, *sides: dict[str, dict[str, Any]], fewer_is_better: bool, ratio: bool) -> Pairs:
    tables = [pa.Table.from_pylist([{"item": item, **row} for item, row in side.items()]) for side in sides]
    return align(kind, measure, *tables, fewer_is_better=fewer_is_better, ratio=ratio)


def answers(a: Sequence[int], b: Sequence[int], status: Sequence[str] | None = None, kind: str = "tasks") -> Pairs:
    rows = [
        {f"q{i:03}": {"value": value, **({"status": status[i]} if status else {})} for i, value in enumerate(side)}
        for side in (a, b)
    ]
    return aligned(kind, "quiz: acc", *rows, fewer_is_better=False, ratio=False)


def differences(every: Sequence[Pairs], seed: int) -> list[Difference]:
    return corrected([line for one in every for line in of_measure(one, seed)])


RNG = np.random.default_rng(0)
HARD = 1 + 0.2 * RNG.standard_normal(15)
NOISE = 0.01 * RNG.standard_normal(15)


def test_a_difference_is_of_pairs_and_of_sums() -> None:
    (line,) = differences([bits(HARD, HARD + 0.03 + NOISE)], seed=0)
    a, b = ((np.array(rates) * SIZES).sum() / sum(SIZES) for rates in (HARD, HARD + 0.03 + NOISE))
    assert (line.a.value, line.b.value) == (pytest.approx(a), pytest.approx(b))
    assert line.difference.value == pytest.approx(a - b)
    assert line.better == "a"  # fewer bits
    assert result_text(line) == "A is better"
    assert line.a.high > line.b.low  # unpaired, the intervals overlap


def test_no_difference_only_beside_what_could_have_been_seen() -> None:
    (line,) = differences([bits(HARD, HARD + NOISE - NOISE.mean())], seed=0)
    assert line.better == ""
    assert line.smallest is not None
    assert result_text(line) == f"no significant difference; minimum detectable effect {line.smallest:.2g}"
    # the smallest effect is four fifths sure to be found: about 2.8 standard errors
    error = (line.difference.high - line.difference.low) / 2 / 2.145
    assert line.smallest == pytest.approx(2.8 * error, rel=0.2)


def test_a_clear_difference_is_found_among_any_number_of_lines() -> None:
    """Its p-value is not a count of draws: 10,000 draws are too few for 501 lines."""
    rng = np.random.default_rng(2)
    others = [answers(rng.integers(0, 2, 60).tolist(), rng.integers(0, 2, 60).tolist(), kind="slices")
              for _ in range(500)]  # fmt: skip
    lines = differences([bits(HARD, HARD + 0.3 + NOISE), *others], seed=0)
    assert lines[0].adjusted < 0.05
    assert result_text(lines[0]) == "A is better"
    assert [line.better for line in lines[1:]] == [""] * 500


def test_no_difference_is_not_said_of_an_interval_without_0() -> None:
    """A result that the correction removes is undecided, and effects of the smallest detectable size were not
    missed."""
    rng = np.random.default_rng(4)
    lines = differences([bits(HARD, HARD + NOISE + rng.normal(0, 0.01)) for _ in range(40)], seed=0)
    found = {result_text(line).partition(";")[0]: line for line in lines}
    assert set(found) == {"A is better", "B is better", "not significant after correction", "no significant difference"}
    for line in lines:
        assert line.smallest is not None
        if result_text(line).startswith("no difference"):
            assert not line.difference.excludes()
        assert (abs(line.difference.value) < line.smallest) or line.better


def test_nothing_varies_says_nothing() -> None:
    same = bits(HARD, HARD)
    (line,) = differences([same], seed=0)
    assert (line.better, line.smallest, result_text(line)) == ("", None, "unknown: no variance, or too few items")


def test_holm_over_the_slices_of_a_kind() -> None:
    """Without the correction, one of twenty slices without any difference would be significant."""
    found = corrected = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        a, b = rng.normal(0, 1, 400), rng.normal(0, 1, 400)
        rows = [{f"i{i:03}": {"value": value, "slices": [f"part {i % 20:02}"]} for i, value in enumerate(side)}
                for side in (a, b)]  # fmt: skip
        lines = differences([aligned("probes", "p", *rows, fewer_is_better=False, ratio=False)], seed=0)
        assert [line.slice for line in lines] == ["all", *(f"part {i:02}" for i in range(20))]
        found += any((line.difference.p or 0) < 0.05 for line in lines[1:])
        corrected += any(line.better for line in lines[1:])
    assert found > 6
    assert corrected <= 2


def test_with_and_without_contaminated_items() -> None:
    """A wins by items that it was trained on; without them nothing is left."""
    rng = np.random.default_rng(1)
    status = ["contaminated"] * 20 + ["suspected"] * 5 + ["clean"] * 100
    a = [1] * 25 + rng.integers(0, 2, 100).tolist()
    b = [0] * 25 + a[25:][::-1]
    (line,) = differences([answers(a, b, status)], seed=0)
    assert (line.better, line.seen) == ("a", 25)
    assert line.clean is not None
    assert line.clean.n == 100
    assert line.clean_better == ""
    assert line.difference.value == pytest.approx(25 / 125)
    listed, count = seen_items(answers(a, b, status))
    assert (len(listed), count, len(seen_items(answers(a, b, status), most=3)[0])) == (25, 25, 3)
    assert {row["status"] for row in listed} == {"contaminated", "suspected"}


def test_largest_gains_by_what_they_add() -> None:
    pairs = bits([1.0] * 15, [1.0] * 12 + [1.01, 1.5, 0.5])
    found = extremes(pairs, most=2)
    assert [row["item"] for row in found["a"]] == ["d13", "d12"]  # 410 bits of 820 bytes, 30 of 3,000
    assert [row["item"] for row in found["b"]] == ["d14"]
    assert found["a"][0]["gain"] == pytest.approx(410)
    assert (found["b"][0]["a"], found["b"][0]["b"]) == (1.0, 0.5)


def test_slices_by_weight_each_once() -> None:
    labels = [["language en", f"domain d{i % 5}", f"bucket {'x' if i % 5 else 'y'}"] for i in range(15)]
    kept, left_out = largest_slices(bits(HARD, HARD, slices=labels), most=3)
    assert "language en" not in kept  # all of them: the whole
    assert [name for name in kept if name.startswith("domain")] == ["domain d1", "domain d2", "domain d3"]
    assert left_out == 2
    kept, left_out = largest_slices(bits(HARD, HARD, slices=labels), most=5)
    assert "domain d0" not in kept  # the same documents as bucket y
    assert (len(kept), left_out) == (6, 0)


def test_other_text_is_not_compared() -> None:
    ours, theirs = documents(HARD), documents(HARD)
    theirs["d03"]["weight"] += 1
    with pytest.raises(IntegrityError, match="different items"):
        aligned("slices", "bits per byte", ours, theirs, fewer_is_better=True, ratio=True)
    del theirs["d03"], ours["d05"]
    found = aligned("slices", "bits per byte", ours, theirs, fewer_is_better=True, ratio=True)
    assert (found.rows.num_rows, found.only_a, found.only_b) == (13, 1, 1)


# ---- the manifest -------------------------------------------------------------------------------------


def checkpoint(ctx: Context, layers: int, tokenizer: bytes, loss: float) -> Manifest:
    source = Manifest(asset="web/sources", step="sources", version="1", params={}, inputs={}, parts=())
    mixture = Manifest(
        asset="mixture", step="mixture", version="1", params={"phases": [{"weights": {"web": layers}}]},
        inputs={"web/sources": source.digest}, parts=(),
    )  # fmt: skip
    run = Manifest(
        asset="run", step="run", version="1", params={"key": f"{layers}", "model": {"layers": layers, "dim": 8}},
        inputs={"mixture": mixture.digest}, parts=(), stats={"final_loss_ema": loss},
    )  # fmt: skip
    part = ctx.store.put_bytes(tokenizer)
    made = Manifest(
        asset="checkpoint", step="checkpoint", version="1", params={}, inputs={"run": run.digest},
        parts=({"name": "tokenizer.json", "blob": part},), stats={"step": 10 * layers, "tokens": 5},
    )  # fmt: skip
    for one in (source, mixture, run, made):
        ctx.refs.save(one)
    return made


def evaluation(ctx: Context, rates: Sequence[float], languages: Sequence[str]) -> Manifest:
    rows = [
        {"id": hashlib.sha256(str(i).encode()).digest()[:16], "bucket": "web", "language": language, "bytes": size,
         "model_bits": rate * size}
        for i, (rate, size, language) in enumerate(zip(rates, SIZES, languages, strict=True))
    ]  # fmt: skip
    schema = pa.schema([("id", pa.binary(16)), ("bucket", pa.string()), ("language", pa.string()),
                        ("bytes", pa.int64()), ("model_bits", pa.float64())])  # fmt: skip
    part = write_table(ctx.store, "documents.parquet", pa.Table.from_pylist(rows, schema))
    items = [{"set": "quiz", "item": f"i{i}", "status": ["clean", "contaminated"][i % 2], "bytes": 50,
              "model_bits": 50 * rates[i]} for i in range(15)]  # fmt: skip
    protected = write_table(ctx.store, "items.parquet", pa.Table.from_pylist(items))
    return Manifest(asset="evaluation", step="e", version="1", params={}, inputs={}, parts=(part, protected))


def task(ctx: Context, right: Sequence[int]) -> Manifest:
    rows = [
        {"document": i, "hash": f"h{i:03}", "filter": "none", "metric": "acc", "score": float(one), "weight": None,
         "bits": 3.0, "bytes": 4, "reason": None}
        for i, one in enumerate(right)
    ]  # fmt: skip
    rows.append({**rows[0], "document": None, "hash": "broken", "score": None, "bits": None, "reason": "no JSON"})
    part = write_table(
        ctx.store, "quiz.parquet", pa.Table.from_pylist(rows), stats={"metrics": {"acc": {"higher_is_better": True}}}
    )
    return Manifest(asset="tasks/small", step="tasks", version="1", params={}, inputs={}, parts=(part,))


@pytest.fixture
def models(ctx: Context) -> tuple[MeasuredModel, MeasuredModel]:
    """B has fewer bits, but more of them in German, and is worse at the task."""
    languages = ["de" if i in (0, 5, 7, 11) else "en" for i in range(15)]
    better = np.where(np.array(languages) == "en", -0.2, 0.1) + NOISE
    a = MeasuredModel(
        checkpoint(ctx, 2, b"one", 3.0),
        {"evaluation": evaluation(ctx, HARD, languages), "tasks/small": task(ctx, [1] * 40 + [0] * 10)},
    )
    b = MeasuredModel(
        checkpoint(ctx, 3, b"two", 3.5),
        {"evaluation": evaluation(ctx, HARD + better, languages), "tasks/small": task(ctx, [1] * 10 + [0] * 40)},
    )
    return a, b


def lines_of(made: Manifest) -> Mapping[tuple[str, str], Difference]:
    lines = [Difference.model_validate(line) for line in made.stats["lines"]]
    return {(line.measure, line.slice): line for line in lines}


def test_lower_loss_worse_task_and_why(ctx: Context, models: tuple[MeasuredModel, MeasuredModel]) -> None:
    made = job.run(ctx, *models)
    lines = lines_of(made)
    assert lines["bits per byte", "all"].better == "b"
    assert lines["bits per byte", "language de"].better == "a"
    assert lines["quiz: acc", "all"].better == "a"
    assert lines["quiz", "all"].seen == 7
    assert not lines["quiz: bits per byte of the right answer", "all"].better
    why = {(reason["measure"], reason["sort"]): reason["text"] for reason in made.stats["reasons"]}
    assert "language de" in why["quiz: acc", "distribution"]
    assert ("quiz: acc", "tokenizer") in why
    assert "lower training loss" in why["bits per byte", "tokenizer"]
    rows = read_table(ctx.store, made.parts[0])
    assert set(rows["kind"].to_pylist()) == {"slices", "protected", "tasks"}
    assert rows.num_rows == 15 + 15 + 50 + 50  # the damaged item is in none


def test_what_differs(ctx: Context, models: tuple[MeasuredModel, MeasuredModel]) -> None:
    found = changes(ctx.refs, models[0].checkpoint, models[1].checkpoint)
    assert [(one.sort, one.where, one.a, one.b) for one in found] == [
        ("steps", "step", "20", "30"),
        ("steps", "final_loss_ema", "3", "3.5"),
        ("recipe", "mixture: phases[0].weights.web", "2", "3"),
        ("recipe", "run: model.layers", "2", "3"),
    ]
    assert changes(ctx.refs, models[0].checkpoint, models[0].checkpoint) == []


def test_made_once_the_same_bytes(ctx: Context, models: tuple[MeasuredModel, MeasuredModel]) -> None:
    first = job.run(ctx, *models)
    for made in models[0].measured.values():  # nothing is read again
        for part in made.parts:
            ctx.store.path(part.blob).unlink(missing_ok=True)
    assert job.run(ctx, *models).digest == first.digest
    assert first.inputs["a/checkpoint"] == models[0].checkpoint.digest
    assert comparison_page(first, "one", "two") == comparison_page(first, "one", "two")


def test_swapped_models_swap_the_findings(ctx: Context, models: tuple[MeasuredModel, MeasuredModel]) -> None:
    ours, theirs = lines_of(job.run(ctx, *models)), lines_of(job.run(ctx, models[1], models[0]))
    swap = {"a": "b", "b": "a", "": ""}
    assert {key: swap[line.better] for key, line in theirs.items()} == {key: line.better for key, line in ours.items()}
    for key, line in ours.items():
        assert math.isclose(theirs[key].difference.value, -line.difference.value)


def test_the_page_says_it_all(ctx: Context, models: tuple[MeasuredModel, MeasuredModel]) -> None:
    span = SpanDifference("ab" * 16, "web", "a.example/x", 64, 130, 80.5, 20.25, "<i>odd</i> " * 60)
    text = comparison_page(job.run(ctx, *models), "<b>one</b>", "two", [span])
    assert "&lt;i&gt;odd" in text
    assert "64 to 130" in text
    assert "+60.25" in text
    assert "<b>one</b>" not in text  # a name is text
    for said_ in ("B is better", "language de", "quiz: acc", "Contaminated items", "mixture: phases[0].weights.web",
                  "plinth explain", "no significant difference", "bootstrap: 0.", "The tokenizers differ"):  # fmt: skip
        assert said_ in text, said_
    assert "http" not in text.replace("http://www.w3.org", "")  # nothing is loaded
    verdict = (
        "Of 4 measures, A is better in 1 and B is better in 2; the number without a significant difference is 0, "
        "and 1 could not be decided. Result on held-out text:"
    )
    assert f'id="verdict">{verdict} bits per byte: B is better (+' in text
    for link in re.findall(r'<a href="#([^"]+)"', text):
        assert f'id="{link}"' in text  # the list of contents leads somewhere


def test_a_model_beside_itself_is_said_to_be_one(ctx: Context, models: tuple[MeasuredModel, MeasuredModel]) -> None:
    words = "A and B are the same model"
    assert words in comparison_page(job.run(ctx, models[0], models[0]), "one", "release")
    assert words not in comparison_page(job.run(ctx, *models), "one", "two")


def test_the_evaluation_page_has_the_wholes(ctx: Context, models: tuple[MeasuredModel, MeasuredModel]) -> None:
    found = section(job.run(ctx, *models).stats, "baseline")
    assert found.title == "Compared with baseline"
    (table,) = found.tables
    assert [row[1] for row in table.rows] == [
        "bits per byte", "quiz", "quiz: bits per byte of the right answer", "quiz: acc",
    ]  # fmt: skip
    assert table.rows[0][-1] == "B is better"
    assert table.rows[2][-1].startswith("unknown")
    lead = Next(what="every slice", link="tiny-comparison.html")
    text = evaluation_page(EvaluationData(title="t", sections=(found,), next=(lead,)))
    assert "Compared with baseline" in text
    assert 'href="tiny-comparison.html"' in text


def test_nothing_measured_is_no_comparison(ctx: Context, models: tuple[MeasuredModel, MeasuredModel]) -> None:
    with pytest.raises(StageError, match="no measurement in common"):
        job.run(ctx, models[0], MeasuredModel(models[1].checkpoint, {}))


def test_a_folder_is_what_it_holds(ctx: Context, tmp_path) -> None:
    made = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("model.safetensors", "config.json", "tokenizer.json", "README.md"):
            (folder / file).write_text(file)
        made.append(weights(ctx, folder))
    assert made[0].digest == made[1].digest
    assert [part.name for part in made[0].parts] == ["config.json", "model.safetensors", "tokenizer.json"]
    (tmp_path / "here" / "tokenizer.json").unlink()
    with pytest.raises(MissingError, match="not a complete model folder"):
        weights(ctx, tmp_path / "here")


def test_probes_by_item(ctx: Context) -> None:
    """Items without an answer are in no pair; a probe without choices has no accuracy."""

    def probes(shift: float) -> Manifest:
        rows = [
            {"probe": "code" if i % 2 else "open", "template": f"t{i % 10}", "item": f"p{i}", "status": "clean",
             "bytes": 4, "bits": 8.0 + shift + i % 3 if i else None, "centred": float(i % 4 > 1) if i % 2 else None}
            for i in range(60)
        ]  # fmt: skip
        part = write_table(ctx.store, "items.parquet", pa.Table.from_pylist(rows))
        return Manifest(asset="probes", step="probes", version="1", params={}, inputs={}, parts=(part,))

    made = [{"probes": probes(shift)} for shift in (0.0, -2.0)]
    found = {one.measure: one for one in pairs.read(ctx.store, *made)}
    assert set(found) == {"code: bits per byte", "open: bits per byte", "code: accuracy above chance"}
    assert found["open: bits per byte"].rows.num_rows == 29
    lines = {line.measure: line for line in differences(list(found.values()), seed=0)}
    assert lines["code: bits per byte"].difference.value == pytest.approx(0.5)
    assert lines["code: bits per byte"].difference.clusters == 5


def test_lines_are_shown_in_the_order_of_their_numbers() -> None:
    """As recorded they are in the order of text, which a release's statement holds."""
    made = of_measure(bits(HARD, HARD), seed=0)
    whole = next(made)
    labels = ["all", "length 1 to 4 KiB", "length 16 to 64 KiB", "length 4 to 16 KiB", "length < 1 KiB",
              "repetitions 16", "repetitions 4"]  # fmt: skip
    recorded = [whole.model_copy(update={"measure": m, "slice": one}) for m in ("b", "a") for one in labels]
    shown = in_order({"lines": [line.model_dump(mode="json") for line in recorded]})
    order = ["all", "length < 1 KiB", "length 1 to 4 KiB", "length 4 to 16 KiB", "length 16 to 64 KiB", "repetitions 4",
             "repetitions 16"]  # fmt: skip
    assert [(line.measure, line.slice) for line in shown] == [(m, one) for m in ("b", "a") for one in order]
