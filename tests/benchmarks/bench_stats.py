"""Cost of statistics by layer as a share of a training step: of a measured step, and with every tenth step measured.

    python tests/benchmarks/bench_stats.py [--out FILE]

One process, the decoder and AdamW alone, so that nothing hides the cost. Measured and unmeasured steps take turns; the
share is the median over pairs. On CPUs one thread, and its own time rather than the wall's, which other work on the
machine would disturb.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from plinth.model.decoder import Decoder, build
from plinth.model.parameters import Model
from plinth.training.engine.device_measurements import LayerMonitor
from plinth.training.engine.optimization import parameter_groups
from plinth.training.parameters.optimizers import Optimizer

RESULTS = Path(__file__).parent / "results" / "stats.json"
VOCABULARY = 8192


def step_s(
    model: Decoder, adam: torch.optim.Optimizer, stats: LayerMonitor, number: int, tokens: torch.Tensor
) -> float:
    """Seconds of one step, with every call of the statistics that the loop makes."""
    clock = time.perf_counter if tokens.is_cuda else time.process_time
    started = clock()
    stats.begin(number)
    loss = model(tokens[:, :-1], targets=tokens[:, 1:])
    loss.backward()
    stats.end()
    adam.step()
    adam.zero_grad()
    loss.item()  # as the loop reads it; waits for the device
    stats.at(number)
    return clock() - started


def measure(config: Model, batch: int, length: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of the result."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(config, VOCABULARY, 1).to(device)
    if device == "cuda":
        model = model.bfloat16()
    stats = LayerMonitor(model, config.layers, every=2)
    adam = torch.optim.AdamW(parameter_groups(Optimizer(), config, model.named_parameters()), fused=True)
    tokens = torch.randint(0, VOCABULARY, (batch, length + 1), device=device)
    for number in range(2):
        step_s(model, adam, stats, number, tokens)
    pairs = [[step_s(model, adam, stats, 2 * n + odd, tokens) for odd in (0, 1)] for n in range(rounds)]
    extra = statistics.median(measured / plain - 1 for measured, plain in pairs)
    size = sum(parameter.numel() for parameter in model.parameters())
    where = torch.cuda.get_device_name() if device == "cuda" else "one CPU thread"
    of = f"{size / 1e6:.1f}M parameters, {batch * length} tokens, {where}"
    return [
        {"measure": f"step, {of}", "value": statistics.median(plain for _, plain in pairs), "unit": "s"},
        {"measure": "statistics by layer, a step that is measured", "value": 100 * extra, "unit": "% of the step"},
        {"measure": "statistics by layer, every tenth step measured", "value": 10 * extra, "unit": "% of the step"},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    torch.set_num_threads(1)
    shape, batch, length = (Model(preset="1b"), 4, 4096) if cuda else (Model(preset="10m"), 2, 256)
    rows = measure(shape, batch, length, arguments.rounds)
    arguments.out.write_text(json.dumps(rows, indent=2) + "\n")
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
