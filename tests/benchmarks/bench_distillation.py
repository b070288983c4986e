"""Compare a distilled student with the same model trained from scratch: same initial weights, same tokens, same order.

The text is Python's standard library as installed on this machine; every fifth module is held out. The teacher is
larger and has seen more of the rest. Arms differ in the loss alone: cross-entropy; mixed with the KL from the teacher's
logits; mixed with that of its stored `TOP_K` tokens and tail (FP16). Measured are bits per byte of the modules held
out.

Two paired intervals of the difference to the arm from scratch (`plinth.evaluation.statistics`): over the modules, with
seeds pooled, for the variance of the text; and over seeds, for the variance of the initial weights.

    python tests/benchmarks/bench_distillation.py [--seeds 5] [--steps 150] [--teacher-steps 1500]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "distillation.json"
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from plinth.evaluation.statistics import Estimate, paired_difference, ratio_difference  # noqa: E402
from plinth.model.decoder import Decoder, build  # noqa: E402
from plinth.model.loss import Teacher, TopTokens, top_tokens  # noqa: E402
from plinth.model.parameters import Model  # noqa: E402
from plinth.training.engine.optimization import learning_rate  # noqa: E402
from plinth.training.parameters.optimizers import Optimizer  # noqa: E402
from tests.model_folder import byte_level  # noqa: E402

VOCABULARY, SEQUENCE, ROWS, TOP_K, SHARE, TEMPERATURE = 512, 64, 16, 16, 0.5, 1.0
BIG = Model(layers=2, dim=128, heads=4, kv_heads=2, ffn_dim=352)
SMALL = Model(layers=1, dim=48, heads=4, kv_heads=2, ffn_dim=128)
ARMS = ("scratch", "teacher", f"top {TOP_K}")

#: Bytes of a module that are read.
MODULE_BYTES = 16_000


def modules() -> list[str]:
    """Modules of the standard library, their beginnings."""
    paths = sorted(Path(os.__file__).parent.glob("*.py"))
    texts = [path.read_text(encoding="utf-8", errors="ignore")[:MODULE_BYTES] for path in paths]
    return [text for text in texts if len(text) > 2_000]


def windows(stream: np.ndarray) -> Tensor:
    """Rows of S + 1 tokens of a stream."""
    rows = (len(stream) - 1) // SEQUENCE
    return torch.from_numpy(np.stack([stream[at * SEQUENCE : (at + 1) * SEQUENCE + 1] for at in range(rows)]))


def batch(rows: Tensor, step: int, seed: int) -> Tensor:
    """The rows of a step, of an order that the seed decides."""
    per_epoch = len(rows) // ROWS
    order = np.random.default_rng([seed, step // per_epoch]).permutation(len(rows))
    return rows[order[step % per_epoch * ROWS :][:ROWS]]


def lesson(teacher: Decoder, inputs: Tensor, arm: str) -> Teacher | TopTokens:
    """Return the targets that the arm learns from, in addition to its text."""
    with torch.no_grad():
        states = teacher.states(inputs).flatten(0, 1)
    if arm == "teacher":
        return Teacher(states, teacher.output_matrix, 1.0, SHARE, TEMPERATURE)
    ids, log_p = top_tokens(states @ teacher.output_matrix.T, TOP_K, TEMPERATURE)
    return TopTokens(ids, log_p.half().float().log_softmax(-1), SHARE, TEMPERATURE)  # as they are stored and read


def trained(
    config: Model, rows: Tensor, steps: int, seed: int, teacher: Decoder | None = None, arm: str = ""
) -> Decoder:
    """Train a model for the given number of steps."""
    model, options = build(config, VOCABULARY, seed), Optimizer(lr=4e-3, warmup_fraction=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(options.beta1, options.beta2), weight_decay=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step + 1, steps)
        tokens = batch(rows, step, seed)
        given = None if teacher is None or arm == "scratch" else lesson(teacher, tokens[:, :-1], arm)
        loss = model(tokens[:, :-1], targets=tokens[:, 1:], whole=True, teacher=given)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def bits(model: Decoder, texts: list[np.ndarray]) -> np.ndarray:
    """Bits of each text [documents]."""
    found = []
    for stream in texts:
        rows = windows(stream)
        loss = model(rows[:, :-1], targets=rows[:, 1:], whole=True)
        found.append(loss.item() * rows[:, 1:].numel() / np.log(2))
    return np.array(found)


def summary(estimate: Estimate) -> dict[str, Any]:
    """An interval, to be read."""
    kept = {name: round(getattr(estimate, name), 4) for name in ("value", "low", "high")}
    return {**kept, "level": estimate.level, "clusters": estimate.clusters, "method": estimate.method}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train the teacher and every arm of every seed, and compare."""
    texts = modules()
    held, kept = texts[::5], [text for number, text in enumerate(texts) if number % 5]
    tokenizer = byte_level(kept, VOCABULARY)
    streams = [np.array([0, *tokenizer.encode(text).ids], np.int64) for text in held]
    sizes = np.array([len(text.encode()) for text in held], np.float64)
    rows = windows(np.concatenate([[0, *tokenizer.encode(text).ids] for text in kept]))
    begun = time.perf_counter()
    teacher = trained(BIG, rows, arguments.teacher_steps, 1)
    per_byte = {"the teacher": float(bits(teacher, streams).sum() / sizes.sum())}
    found: dict[str, list[np.ndarray]] = {arm: [] for arm in ARMS}
    for seed in range(2, 2 + arguments.seeds):
        for arm in ARMS:
            found[arm].append(bits(trained(SMALL, rows, arguments.steps, seed, teacher, arm), streams))
    means = {arm: np.array([each.sum() / sizes.sum() for each in own]) for arm, own in found.items()}
    per_byte |= {arm: float(own.mean()) for arm, own in means.items()}
    documents = np.tile(np.arange(len(held)), arguments.seeds)
    scratch, everywhere = np.concatenate(found["scratch"]), np.tile(sizes, arguments.seeds)
    less = {
        arm: {
            "over modules": summary(ratio_difference(np.concatenate(found[arm]), scratch, everywhere, documents)),
            "over seeds": summary(paired_difference(means[arm], means["scratch"])),
        }
        for arm in ARMS[1:]
    }
    return {
        "bits_per_byte": {arm: round(value, 4) for arm, value in per_byte.items()},
        "less_than_scratch": less,
        "seeds": arguments.seeds,
        "student_tokens": arguments.steps * ROWS * SEQUENCE,
        "teacher_tokens": arguments.teacher_steps * ROWS * SEQUENCE,
        "parameters": {name: sum(p.numel() for p in build(one, VOCABULARY, 1).parameters()) for name, one in SIZES},
        "modules_held_out": len(held),
        "seconds": round(time.perf_counter() - begun),
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} thread",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


SIZES = (("teacher", BIG), ("student", SMALL))


def main() -> None:
    """Measure, print and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--teacher-steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(arguments)
    text = json.dumps(result, indent=1)
    print(text)
    arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
