"""lm-evaluation-harness in this process over a model whose every number is known: 8 bits a byte, and it echoes."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import MissingError, StageError
from plinth.evaluation.tasks import job
from plinth.evaluation.tasks.job import Text
from tests.peers import Peer

damage = Peer("plinth.evaluation.tasks.harness")  # imports lm_eval
FILES = Path(__file__).parent / "files"
PARAMS = {"fewshot": None, "limit": None, "seed": 1234}

pytestmark = pytest.mark.slow


class Known:
    """A byte costs 8 bits and is never the likeliest; generation repeats the end of the prompt."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.decode = decode
        self.asked: list[tuple[Text, Text]] = []
        self.sampling: list[Mapping[str, Any]] = []

    def likelihoods(self, pairs: Sequence[tuple[Text, Text]]) -> list[tuple[float, bool]]:
        self.asked += pairs
        return [(8.0 * len(self._text(rest).encode()), False) for _, rest in pairs]

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[str]:
        self.sampling.append(sampling)
        return [f" {self._text(prompt).splitlines()[-2].split()[-1]}\nand more" for prompt in prompts]

    def _text(self, given: Text) -> str:
        return given if isinstance(given, str) else self.decode(given)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module, with the caches of its libraries in a folder of the test."""
    folder = tmp_path_factory.mktemp("hub")
    from huggingface_hub import constants  # it reads the variables once and for all: before they are set

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (job.OFFLINE | {"HF_HOME": str(folder)}).items():
            patch.setenv(name, value)
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        import datasets

        from plinth.evaluation.tasks import harness as made

        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
        yield made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the task files, and the current folder, as it is in the child."""
    made = tmp_path / "files"
    shutil.copytree(FILES, made, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def run(harness: Any, folder: Path, model_folder: Path) -> Callable[..., Any]:
    """Runs one task as the child does, after damaged lines are set aside."""
    from plinth.evaluation.tasks.lm import CheckpointLM

    def one(name: str, **params: Any) -> Any:
        lost = damage.set_aside(folder)
        task = harness.load(folder, [name], lost)[name]
        lm = CheckpointLM(Known(lambda ids: lm.tokenizer.decode(list(ids))), model_folder)
        facts, rows = harness.run(name, task, lm, PARAMS | params)
        facts["estimates"] = job.estimates(rows, facts, 0)
        return facts, rows, lost, lm.model

    return one


def value(facts: Mapping[str, Any], metric: str) -> Any:
    return facts["estimates"][metric]["value"]


def test_known_numbers(run: Callable[..., Any]) -> None:
    facts, rows, _, _ = run("pages")
    assert value(facts, "bits_per_byte") == pytest.approx(8, rel=1e-12)
    assert value(facts, "byte_perplexity") == pytest.approx(256, rel=1e-9)
    assert all(row["bits"] == pytest.approx(8 * row["bytes"]) for row in rows)
    facts, rows, _, _ = run("last_word")
    words = [json.loads(line)["word"] for line in (FILES / "data" / "last-word.jsonl").read_text().splitlines()]
    nats = 8 * math.log(2) * sum(len(f" {word}") for word in words) / len(words)
    assert value(facts, "perplexity") == pytest.approx(math.exp(nats), rel=1e-9)
    assert (value(facts, "acc"), facts["documents"]) == (0.0, len(words))


def test_windows_of_a_long_text_hold_each_token_once_and_one_of_context(run: Callable[..., Any]) -> None:
    *_, model = run("pages")
    assert all(not isinstance(prompt, str) and len(prompt) + len(rest) <= 129 for prompt, rest in model.asked)
    texts = [json.loads(line)["text"] for line in (FILES / "data" / "pages.jsonl").read_text().splitlines()]
    assert "".join(model.decode(list(rest)) for _, rest in model.asked) == "".join(texts)


def test_the_model_that_copies_is_right_where_copying_is_asked(run: Callable[..., Any]) -> None:
    facts, rows, _, model = run("copies")
    assert value(facts, "exact_match") == 0.0  # " apple" is not "apple", as lm-evaluation-harness compares
    assert [row["output"] for row in rows][:2] == [" apple", " river"]
    assert [one["max_tokens"] for one in model.sampling] == [12]
    assert model.sampling[0]["stop"][0] == "\n"


@pytest.mark.parametrize("line", ["{", '{"question": "1 + 1 =", "choices": ["2", "3"]}', '{"a": 1}'])
def test_a_damaged_line_costs_its_item(run: Callable[..., Any], folder: Path, line: str) -> None:
    path = folder / "data" / "sums.jsonl"
    rows = path.read_text().splitlines()
    whole, _, none, _ = run("sums")
    path.write_text("\n".join([*rows[:7], line, *rows[8:]]))
    facts, _, (lost,), _ = run("sums")
    assert none == []
    assert (whole["documents"], facts["documents"]) == (40, 39)
    assert (lost.file, lost.line) == ("data/sums.jsonl", 8)


@pytest.mark.parametrize("at", [0, 1, 39])
def test_a_document_that_cannot_be_judged_costs_itself(run: Callable[..., Any], folder: Path, at: int) -> None:
    """lm-evaluation-harness cannot make the task when it is the first, and counts it as wrong when it is another."""
    path = folder / "data" / "sums.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[at]["answer"] = 17
    path.write_text("\n".join(map(json.dumps, rows)))
    facts, found, lost, _ = run("sums")
    assert facts["documents"] == 39
    assert facts["damaged"] + len(lost) == 1
    bounds = job.estimates(found, facts | {"damaged": 1}, 0)["acc"]
    assert (bounds["n"], bounds["flags"]) == (40, ("missing",)) or bounds["flags"] == ["missing"]


def test_shots_depend_on_the_seed_and_a_limit_takes_the_first(run: Callable[..., Any]) -> None:
    first = run("sums_with_examples", limit=5)[-1].asked
    again = run("sums_with_examples", limit=5)[-1].asked
    other = run("sums_with_examples", limit=5, seed=1)[-1].asked
    more = run("sums_with_examples", limit=5, fewshot=1)[-1].asked
    assert first == again != other
    assert len(first) == len(more) == 20
    assert first[0][0].count("=") == 4
    assert more[0][0].count("=") == 2


def test_names(harness: Any, folder: Path) -> None:
    assert len(harness.load(folder, [], [])) == 12
    assert set(harness.load(folder, ["choices"], [])) >= {"sums", "capitals", "sums_with_examples"}


@pytest.mark.exhaustive
def test_an_unknown_name(harness: Any, folder: Path) -> None:
    """It is looked for among the 15,000 of lm-evaluation-harness, which takes some 10 s."""
    with pytest.raises(MissingError, match="unknown tasks: sum"):
        harness.load(folder, ["sum"], [])


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ("{data_files: {test: /etc/hosts}}", "outside its folder"),
        ("{data_files: {test: ../secret.jsonl}}", "outside its folder"),
        ("{data_files: {test: 'https://127.0.0.1:9/x.jsonl'}}", "outside its folder"),
        ("{data_files: {test: data/absent.jsonl}}", "cannot be loaded"),
    ],
)
def test_data_that_is_not_in_the_folder(harness: Any, folder: Path, files: str, reason: str) -> None:
    (folder / "away.yaml").write_text(f"include: sums.yaml\ntask: away\ndataset_kwargs: {files}\n")
    with pytest.raises(StageError, match=reason):
        harness.load(folder, ["away"], [])


def test_a_hub_dataset_is_not_downloaded(harness: Any, folder: Path) -> None:
    (folder / "away.yaml").write_text("include: sums.yaml\ntask: away\ndataset_path: allenai/ai2_arc\n")
    with pytest.raises(StageError, match="nothing is downloaded"):
        harness.load(folder, ["away"], [])


@pytest.mark.exhaustive
def test_a_task_of_lm_evaluation_harness_from_a_copy_of_its_dataset(run: Callable[..., Any], folder: Path) -> None:
    """Run `arc_easy` unchanged; a stand-in for the dataset's repository, with two documents, has its name."""
    copy = folder / "allenai" / "ai2_arc" / "ARC-Easy"
    copy.mkdir(parents=True)
    choices = [{"text": ["x", f"{n}"], "label": ["A", "B"]} for n in range(2)]
    rows = [
        {"id": f"{n}", "question": f"Which is {n}?", "answerKey": "B", "choices": one} for n, one in enumerate(choices)
    ]
    for split in ("train", "validation", "test"):
        (copy / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = ("train", "validation", "test")
    config = "\n".join(f"      - {{split: {split}, path: ARC-Easy/{split}.jsonl}}" for split in splits)
    card = f"---\nconfigs:\n  - config_name: ARC-Easy\n    data_files:\n{config}\n---\n"
    (copy.parent / "README.md").write_text(card)
    facts, found, _, model = run("arc_easy")
    assert facts["documents"] == 2
    assert ("Question: Which is 0?\nAnswer:", " 0") in model.asked
    assert {row["metric"] for row in found} == {"acc", "acc_norm"}
