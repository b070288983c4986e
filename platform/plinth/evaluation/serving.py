"""Cost of serving a checkpoint: estimated for named devices, and measured on this machine.

Estimates follow from the configuration alone and are stored as an asset (`serving`). Measurements vary and are stored
as workspace records that are not part of any digest. Only the newest record per checkpoint is kept. It names the
machine.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

from plinth.compute import context
from plinth.compute.context import Context
from plinth.compute.engine import cores
from plinth.evaluation.engine.client import ModelEngine
from plinth.launch.devices import DEVICES, USABLE, Device
from plinth.model import architectures
from plinth.model.hugging_face import CONFIG, model_of
from plinth.model.parameters import Model
from plinth.records import Manifest, Step
from plinth.storage.atomic import write_bytes

# Estimates for named devices. They are lower bounds on time that good implementations come close to.
#
#     B  sequences at once    T  tokens of context    P  parameters of matrices, the output projection included
#     L  layers    H  query heads    K  key/value heads    E  head width
#
# A pass reads every weight and the keys and values of its sequences once, and computes. The slower of reading and
# computing is the bound (the roofline of Williams et al. 2009):
#
#     time of a pass = max(bytes / bandwidth, FLOPs / peak)
#     one more token of B sequences   bytes = 2 P + B T k       FLOPs = B (2 P + 4 L H E T)
#     a prompt of T tokens            bytes = 2 P + T k         FLOPs = T 2 P' + 2 L H E T^2
#     k = 4 L K E  bytes of keys and values per token           P' excludes the output projection: one token needs it
#
# A layer with a sliding window of W keys reads and computes at most W of them per token, and keeps no others.
#
# Assumptions: one device; weights, keys and values in BF16; dense peak and full bandwidth of the data sheet; computing
# and reading overlap; no other overhead. Memory: weights, and as many full contexts as fit into 90% of the device.

ASSET = "serving"
VERSION = "2"

BYTES = 2  # of a number in BF16


def run(ctx: Context, checkpoint: Manifest) -> Manifest:
    """Compute the asset `serving` from the checkpoint's configuration. Its statistics are the result of `bounds`."""
    import json

    (part,) = checkpoint.named(CONFIG)
    config = json.loads(ctx.store.read_bytes(part.blob))
    stats = bounds(model_of(config), int(config["vocab_size"]), int(config["max_position_embeddings"]))
    return context.manifest(ASSET, Step(name=ASSET, version=VERSION), {"checkpoint": checkpoint}, [], stats)


def bounds(model: Model, vocab_size: int, context: int) -> dict[str, Any]:
    """Return the bytes of the weights, the bytes of keys and values per token, and the estimates for every device (see
    `on`)."""
    counted = architectures.parameters(model, vocab_size)
    return {
        "parameters": counted.total,
        "context": context,
        "weights_bytes": BYTES * counted.total,
        "kv_bytes_per_token": kv_bytes(model, context) // context,
        "devices": {name: on(device, model, vocab_size, context) for name, device in DEVICES.items()},
    }


def kv_bytes(model: Model, context: int, width: int = BYTES) -> int:
    """Return the bytes of keys and values of a sequence of `context` tokens, with `width` bytes per number.

    A layer with a sliding window keeps the keys and values of the window only.
    """
    return 2 * sum(architectures.square_keys(model, context)) * model.kv_heads * model.head_width * width


def on(device: Device, model: Model, vocab_size: int, context: int) -> dict[str, Any]:
    """Return estimates for one device: time to the first token at full context, and generation speed with one sequence
    and with a full batch.

    If the weights do not fit, `sequences` is 0 and the speeds are None.
    """
    weights = BYTES * architectures.parameters(model, vocab_size).total
    fit = max(0, int((USABLE * device.memory_bytes - weights) // kv_bytes(model, context)))
    if not fit:
        return {"sequences": 0, "first_token_s": None, "tokens_per_s": None, "tokens_per_s_full": None}
    return {
        "sequences": fit,
        "first_token_s": prompt_s(device, model, vocab_size, context),
        "tokens_per_s": 1 / token_s(device, model, vocab_size, context, 1),
        "tokens_per_s_full": fit / token_s(device, model, vocab_size, context, fit),
    }


def token_s(device: Device, model: Model, vocab_size: int, context: int, sequences: int) -> float:
    """Return the seconds of one forward pass that adds one token to each of `sequences` sequences."""
    matrices = _matrices(model, vocab_size)
    read = BYTES * architectures.weights_read(model, vocab_size, sequences) + sequences * kv_bytes(model, context)
    attention = 4 * model.heads * model.head_width * sum(architectures.square_keys(model, context))
    return max(read / device.memory_bytes_per_s, sequences * (2 * matrices + attention) / device.bf16_flops)


def prompt_s(device: Device, model: Model, vocab_size: int, tokens: int) -> float:
    """Return the seconds to the first token after a prompt of `tokens` tokens."""
    matrices, output = _matrices(model, vocab_size), vocab_size * model.dim
    read = BYTES * architectures.weights_read(model, vocab_size, tokens) + kv_bytes(model, tokens)
    pairs = sum(keys * (2 * tokens - keys) for keys in architectures.square_keys(model, tokens))
    attention = 2 * model.heads * model.head_width * pairs  # causal: half of the square
    work = tokens * 2 * (matrices - output) + 2 * output + attention
    return max(read / device.memory_bytes_per_s, work / device.bf16_flops)


def _matrices(model: Model, vocab_size: int) -> int:
    return architectures.parameters(model, vocab_size).products + vocab_size * model.dim


def path(ctx: Context, checkpoint: str) -> Path:
    """Return the path of a checkpoint's measurement record, which is named by the checkpoint's digest."""
    return ctx.workspace.costs / "serving" / f"{checkpoint[:12]}.json"


def measure(ctx: Context, checkpoint: Manifest) -> dict[str, Any]:
    """Measure the serving cost of a checkpoint on this machine, and save the record.

    Raises:
        TrainingError, CheckpointError: the model cannot be loaded.
    """
    with ModelEngine.of(ctx, checkpoint, label="serving") as engine:
        found = engine.serving() | {"machine": platform.machine(), "cores": cores()}
    place = path(ctx, checkpoint.digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place, (json.dumps(found, indent=2) + "\n").encode())
    return found


def read(ctx: Context, checkpoint: str) -> dict[str, Any] | None:
    """Return a checkpoint's measurement record, or None if it was not measured in this workspace."""
    try:
        found: dict[str, Any] = json.loads(path(ctx, checkpoint).read_bytes())
    except (OSError, ValueError):
        return None
    return found
