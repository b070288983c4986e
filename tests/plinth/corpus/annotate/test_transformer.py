"""Compare ready transformer heads with transformers' own pipeline: tiny ones of random numbers, built here."""

import json
import random
import shutil
import socket
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from plinth.corpus.annotate import language
from plinth.corpus.models import given
from plinth.errors import IntegrityError, RecipeError
from plinth.records import Manifest
from tests.peers import Peer

transformers = Peer("transformers")

KEY = "models/edu"
POSITIONS = 64


def real_texts(most: int = 60) -> list[str]:
    """Notes and programs of this machine, from a line to many pages, and texts that are hardly any."""
    paths = sorted(Path(sysconfig.get_path("purelib")).glob("*/METADATA"))[: most // 2]
    paths += sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: most // 2]
    rng, found = random.Random(2), ["", " ", "x", "a" * 5000, " " * 3000 + "the end"]
    return found + [path.read_text("utf-8", "replace")[: rng.choice([80, 300, 20_000])] for path in paths]


def make(folder: Path, labels: int, **config: Any) -> Path:
    """Write a head and its tokenizer, as `save_pretrained` does."""
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words.train_from_iterator(real_texts(), trainers.WordPieceTrainer(vocab_size=400, special_tokens=special))
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(labels)
    sizes = transformers.BertConfig(
        vocab_size=words.get_vocab_size(), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=POSITIONS, initializer_range=0.3, num_labels=labels, **config,
    )  # fmt: skip
    head = transformers.BertForSequenceClassification(sizes)
    torch.nn.init.normal_(head.classifier.weight, std=1.0)
    head.save_pretrained(folder)
    return folder


def files(folder: Path) -> dict[str, dict[str, Path]]:
    return {KEY: {path.name: path for path in folder.iterdir()}}


def rows(folder: Path, texts: list[str], **params: Any) -> list[dict[str, Any]]:
    prepared = language.prepare_transformer(language.TransformerParams(model="edu", **params), files(folder))
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    made = language.annotate_transformer(batch, prepared)
    assert made.schema == language.TRANSFORMER_SCHEMA
    return list(made.to_pylist())


def pipelines(folder: Path, texts: list[str], **how: Any) -> list[dict[str, float]]:
    """Scores by label, one text after the other, as transformers computes them."""
    peer = transformers.pipeline("text-classification", model=str(folder), top_k=None, device="cpu", **how)
    answers = [peer([text], truncation=True, max_length=POSITIONS)[0] for text in texts]
    return [{one["label"]: one["score"] for one in answer} for answer in answers]


@pytest.fixture(scope="module")
def edu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("edu"), 1, problem_type="regression")


def test_nothing_is_fetched(edu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert rows(edu, ["a text"])[0]["tokens"] > 2


@pytest.mark.parametrize(
    ("labels", "config"),
    [
        (3, {"id2label": {0: "low", 1: "middle", 2: "high"}}),
        (2, {"problem_type": "multi_label_classification", "id2label": {0: "toxic", 1: "insult"}}),
    ],
)
def test_labels_are_the_pipelines(tmp_path: Path, labels: int, config: dict[str, Any]) -> None:
    folder, texts = make(tmp_path, labels, **config), real_texts(20)
    for target in config["id2label"].values():
        for row, expected in zip(rows(folder, texts, target=target), pipelines(folder, texts), strict=True):
            assert row["label"] == max(expected, key=lambda label: expected[label])
            assert row["score"] == pytest.approx(max(expected.values()), abs=1e-5)
            assert row["target_score"] == pytest.approx(expected[target], abs=1e-5)


def test_a_regression_is_the_pipelines(edu: Path) -> None:
    texts = real_texts()
    found, expected = rows(edu, texts), pipelines(edu, texts)
    scores = [next(iter(answer.values())) for answer in expected]
    assert [row["score"] for row in found] == pytest.approx(scores, abs=1e-5)
    assert np.std(scores) > 0.1
    assert {(row["label"], row["target_score"]) for row in found} == {(None, None)}
    assert {row["tokens"] for row in found} >= {2, 3, POSITIONS}


def test_one_number_is_taken_as_it_is(tmp_path: Path) -> None:
    """A single output is not squashed, also if the model is not declared a regression; a pipeline would squash it."""
    folder, texts = make(tmp_path, 1), real_texts(4)
    scores = [next(iter(one.values())) for one in pipelines(folder, texts, function_to_apply="none")]
    assert [row["score"] for row in rows(folder, texts)] == pytest.approx(scores, abs=1e-5)


def test_the_same_batch_gives_the_same_bytes_on_any_number_of_threads(edu: Path) -> None:
    texts, threads = real_texts(), torch.get_num_threads()
    first = rows(edu, texts)
    torch.set_num_threads(threads + 3)
    try:
        assert rows(edu, texts) == first
        assert torch.get_num_threads() == threads + 3
    finally:
        torch.set_num_threads(threads)


def test_batches_hold_every_row_once_and_little_padding() -> None:
    lengths = np.array([5, 512, 512, 3, 100, 8, 512] * 20, np.int32)
    batches = list(given._batches(lengths))
    assert sorted(np.concatenate(batches).tolist()) == list(range(lengths.size))
    assert all(batch.size * lengths[batch].max() <= given.BATCH_TOKENS for batch in batches)


def test_a_long_text_is_cut_before_it_is_read_and_nothing_changes(edu: Path) -> None:
    texts = [" ".join(real_texts())[:200_000], " " * 9000 + "the end of a text", "a" * 9000 + " b"]
    scores = [next(iter(answer.values())) for answer in pipelines(edu, texts)]
    assert [row["score"] for row in rows(edu, texts)] == pytest.approx(scores, abs=1e-5)


def changed(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_is_no_head_is_refused(tmp_path: Path, edu: Path) -> None:
    def refused(said: str, *, drop: str = "", add: str = "", config: dict[str, Any] | None = None) -> None:
        folder = tmp_path / said.replace(" ", "-").replace("/", "-")
        folder.mkdir()
        for path in edu.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        if drop:
            (folder / drop).unlink()
        if add:
            (folder / add).write_bytes(b"print('ran')")
        changed(folder, "config.json", **(config or {})) if config else None
        with pytest.raises(IntegrityError, match=r"models/edu cannot be used") as error:
            given.transformer_described(files(folder)[KEY], KEY)
        assert said in f"{error.value.found} {error.value.expected}"
        with pytest.raises(IntegrityError):
            language.prepare_transformer(language.TransformerParams(model="edu"), files(folder))

    refused("config.json", drop="config.json")
    refused("safetensors; other formats can contain code", drop="model.safetensors", add="pytorch_model.bin")
    refused("auto_map", config={"auto_map": {"AutoModelForSequenceClassification": "own.Own"}})
    refused("architecture BertModel", config={"architectures": ["BertModel"]})


def test_a_damaged_file_is_an_error(tmp_path: Path, edu: Path) -> None:
    for path in edu.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes((edu / "model.safetensors").read_bytes()[:-1000])
    with pytest.raises(IntegrityError, match="models/edu cannot be used"):
        language.prepare_transformer(language.TransformerParams(model="edu"), files(tmp_path))


def test_a_label_that_the_head_lacks_is_an_error(edu: Path) -> None:
    with pytest.raises(RecipeError, match="no label 'hq'"):
        rows(edu, ["a"], target="hq")


def test_a_clone_as_an_annotator_of_a_bucket(tiny: Any, edu: Path, tmp_path: Path) -> None:
    from plinth.corpus import annotate, lists, models

    folder = shutil.copytree(edu, tmp_path / "clone")  # a typical clone, with other files next to it and below it
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    (folder / "train.py").write_text("raise SystemExit('ran')")
    for below in (".git", "onnx"):
        (folder / below).mkdir()
        (folder / below / "config.json").write_text("{")
    corpus = tiny.corpus({"web": [[tiny.Doc(text) for text in real_texts(8)[2:]]]})
    files_of = lists.run(corpus.ctx, "edu", str(folder))
    command = "LC_ALL=C sha256sum * | sha256sum"  # of the docs
    said = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True).stdout
    raw = {"kind": "given", "files": "edu", "of": "transformer", "sha256": said.split()[0]}
    model: Manifest = models.train(corpus.ctx, "edu", raw, {}, {"edu": files_of})
    assert model.stats["regression"] is True
    made = annotate.run(
        corpus.ctx, "web", "transformer_edu", {"model": "edu"}, corpus.documents["web"], {"models/edu": model}
    )
    assert made.asset == "web/transformer_edu"
    assert made.stats["columns"]["score"]["values"] == corpus.documents["web"].rows
    uses = annotate.libraries("transformer_edu", {"model": "edu"})
    assert set(uses) >= {"torch", "transformers", "tokenizers", "safetensors"}
