"""Real models in the engine's child: pairs, continuations and their judge; a bias that training planted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plinth.compute.context import Context
from plinth.corpus.lists import lists
from plinth.errors import SourceError
from plinth.evaluation.fairness import job, templates
from plinth.evaluation.fairness.parameters import Fairness
from plinth.evaluation.fairness.toxicity import ToxicityJudge
from plinth.model.decoder import Decoder, build
from plinth.model.hugging_face import hf_config
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.parts import read_table
from tests.model_folder import save_model

pytestmark = pytest.mark.slow

LINE = {"attribute": "town", "template": "t", "a": "the quick brown fox", "b": "the lazy brown dog"}


def _flat(model: Decoder) -> None:
    """Predictions near uniform, so that continuations differ."""
    model.embed_tokens.div_(20)


def test_pairs_continuations_and_their_judge(
    ctx: Context, model_directory: Callable[..., Path], checkpoint: Callable[[Path], Manifest]
) -> None:
    ctx.workspace.input.mkdir(parents=True, exist_ok=True)
    (ctx.workspace.input / "mine.jsonl").write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | {"template": "u"}))
    (ctx.workspace.input / "toxic.txt").write_text("quick\t1\tspeed\nlazy\t1\tspeed\nwelt\t1\tplaces\n")
    words = lists.run(ctx, "toxic", "toxic.txt")
    judge = ToxicityJudge({"lexicon": "toxic", "model": None}, {"lists/toxic": words})
    params = Fairness(built_in=False, pairs={"mine": "mine.jsonl"}, max_tokens=8)
    model = checkpoint(model_directory(_flat))
    made = job.run(ctx, params, model, judge)
    rows = read_table(ctx.store, made.named(job.PAIRS)[0]).to_pylist()
    assert [row["favoured"] for row in rows] == [row["bits_b"] - row["bits_a"] for row in rows]
    assert rows[0]["bits_a"] == rows[1]["bits_a"] > 0
    found = made.stats["attributes"]["mine/town"]
    assert (found["n"], found["clusters"], found["found"]) == (2, 2, False)  # no spread is no evidence
    written = read_table(ctx.store, made.named(job.CONTINUATIONS)[0])
    assert written.num_rows == 2 * len(templates.PROMPTS)
    assert len(set(written["text"].to_pylist())) > len(templates.PROMPTS)  # each draw is its own
    toxic = made.stats["toxicity"]
    labels = written["label"].to_pylist()
    assert toxic["toxic"]["value"] == labels.count("toxic") / len(labels)
    assert toxic["toxic_at_most"] >= toxic["toxic"]["value"]
    assert toxic["score"]["clusters"] == len(templates.PROMPTS)
    assert pc.max(written["score"]).as_py() <= 1
    assert job.run(ctx, params, model, judge).digest == made.digest
    before = job.outside(params, ctx)
    (ctx.workspace.input / "mine.jsonl").write_text(json.dumps(LINE))
    assert job.outside(params, ctx) != before
    with pytest.raises(SourceError, match="no file matches"):
        job.run(ctx, params.model_copy(update={"pairs": {"mine": "absent.jsonl"}}), model)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    texts = [f"{one.a.prompt}{one.a.continuation} {one.b.prompt}" for one in templates.built_in()]
    made.train_from_iterator(texts, trainer)
    return made


def _trained(words: Tokenizer, share: float, folder: Path) -> Path:
    """A decoder that read the frames: in gender, group a gets the good end with this probability, b with the rest."""
    rng, sentences = random.Random(1), []
    frames = {one.name: one for one in templates.FRAMES}
    for _ in range(6400):
        pair = rng.choice(templates.built_in())
        group = rng.random() < 0.5
        good = rng.random() < (share if pair.attribute == "gender" else 0.5)
        frame = frames[pair.template]
        sentences.append(f"{(pair.b if group else pair.a).prompt}{frame.good if good != group else frame.bad}")
    rows = [[0, *words.encode(text).ids, 0] for text in sentences]
    config = Model(layers=2, dim=64, heads=2, kv_heads=1, ffn_dim=128)
    model = build(config, words.get_vocab_size(), seed=1)
    _train(model, rows)
    save_model(folder, dict(model.named_parameters()), hf_config(config, words.get_vocab_size(), 64, "float32", 0))
    words.save(str(folder / "tokenizer.json"))
    return folder


def _train(model: Decoder, rows: list[list[int]]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for at in range(0, len(rows), 32):
        batch = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row) for row in rows[at : at + 32]], batch_first=True, padding_value=-100
        )
        model(batch[:, :-1].clamp(min=0), targets=batch[:, 1:]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("share", "expected"), [(0.9, {"gender"}), (0.5, set())])
def test_training_on_a_swapped_corpus_is_found(
    ctx: Context,
    words: Tokenizer,
    checkpoint: Callable[[Path], Manifest],
    tmp_path: Path,
    share: float,
    expected: set[str],
) -> None:
    made = job.run(ctx, Fairness(), checkpoint(_trained(words, share, tmp_path / "trained")))
    assert {name for name, one in made.stats["attributes"].items() if one["found"]} == expected
    assert made.stats["toxicity"] is None
    if expected:
        assert made.stats["attributes"]["gender"]["value"] > 1
