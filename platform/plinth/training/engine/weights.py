"""Model weights on a rank: initial weights from files, FP32 master weights, and the exponential mean of the weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from plinth.errors import CheckpointError
from plinth.model.decoder import Decoder
from plinth.model.division import Initial, Placement, Role, WeightSource, file_tensors, state
from plinth.model.folder import DERIVED
from plinth.model.hugging_face import CONFIG, INDEX, TOKENIZER, WEIGHTS, hf_name
from plinth.model.packed import Unpacked, has_packed, part_names
from plinth.records import Manifest, Part
from plinth.storage.shared_store import open_store
from plinth.storage.state import Refs
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth.tokens.tokenizer.encode import load as load_tokenizer
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer

# Initial weights for any part of any parameter, read from saved weights. Every rank reads only its share.
#
# The same interface as `plinth.model.division.Initial`, which draws weights: a part is requested by its place, so
# ZeRO-3, tensor and pipeline ranks need no code of their own. A file is opened at the first request for one of its
# tensors. The first rank on a machine that reads a file also compares its digest.
#
#     V  rows of the parent's embeddings    D  model width

#: Rows of the embeddings in memory at once while a vocabulary is mapped.
BLOCK_ROWS = 4096


@contextmanager
def weight_source(config: RunConfig) -> Iterator[WeightSource]:
    """Open the run's initial weights, which are sampled with the run's seed or read from files.

    Raises:
        CheckpointError: the files do not contain the parameters of the model.
        MissingError, IntegrityError: a file is absent or has changed.
    """
    if config.initial is None:
        yield Initial(config.model, config.seed)
        return
    workspace = Workspace(config.workspace)
    store, refs = open_store(workspace), Refs(workspace)
    manifest = refs.load(config.initial.manifest)
    rows = None
    if config.initial.vocabulary == "mean":
        rows = parent_rows(store, refs.load(config.tokenizer), manifest, config.vocab_size)
    with ExitStack() as stack:
        yield SavedInitial(stack, store, manifest, config, rows)


def parent_rows(store: Store, tokenizer: Manifest, initial: Manifest, vocab_size: int) -> NDArray[np.int64]:
    """Return, for each token of the run's vocabulary, the row of the parent's token with the same text [vocab_size].

    The row is -1 if the parent has no such token.
    """
    (ours,), (theirs,) = tokenizer.named(TOKENIZER), initial.named(TOKENIZER)
    known = load_tokenizer(store, theirs.blob).get_vocab()
    rows = np.full(vocab_size, -1, dtype=np.int64)
    for text, row in load_tokenizer(store, ours.blob).get_vocab().items():
        rows[row] = known.get(text, -1)
    return rows


class SavedInitial:
    """Initial weights of a run that starts from files.

    Args:
        stack: closes the files.
        rows: row of each token in the parent's embedding [vocabulary], if the vocabularies differ.

    Raises:
        CheckpointError: tensors are missing or unknown; the error lists all of them. Shapes are compared when a tensor
            is read.
    """

    def __init__(
        self, stack: ExitStack, store: Store, initial: Manifest, config: RunConfig, rows: NDArray[np.int64] | None
    ) -> None:
        self._stack, self._store, self._initial, self._rows = stack, store, initial, rows
        self._open: dict[str, Any] = {}
        self._parts = {part.name: part for part in initial.parts}
        self._where = self._located()
        self._vocabulary = int(initial.stats["vocab_size"])
        self._require(config)

    def fill(self, target: Tensor, name: str, role: Role, placement: Placement) -> None:
        """Write the initial values of one part of a tensor into `target`, in its precision and on its device. See
        `Initial.fill` for the arguments."""
        if self._rows is not None and role == "embedding":
            self._fill_rows(target, self._tensor(name, (self._vocabulary, placement.shape[1])), placement)
            return
        tensor = self._tensor(name, placement.shape)
        rows = slice(placement.row, placement.row + target.shape[0])
        if target.dim() == 1:
            target.copy_(tensor[rows])
        else:
            target.copy_(tensor[rows, placement.column : placement.column + target.shape[1]])

    def _fill_rows(self, target: Tensor, tensor: Any, placement: Placement) -> None:
        """Fill the rows of tokens that the parent's vocabulary has with the parent's rows [V, D].

        All other rows get the mean of the parent's rows. The mean is computed block by block in FP64, so it is the same
        on every rank.
        """
        assert self._rows is not None
        wanted = torch.from_numpy(self._rows[placement.row : placement.row + target.shape[0]])
        count, width = tensor.get_shape()
        total = torch.zeros(width, dtype=torch.float64)
        for first in range(0, count, BLOCK_ROWS):
            block: Tensor = tensor[first : first + BLOCK_ROWS]
            total += block.double().sum(0)
            here = ((wanted >= first) & (wanted < first + len(block))).nonzero().flatten()
            target[here] = block[wanted[here] - first].to(target.device, target.dtype)
        target[(wanted < 0).nonzero().flatten()] = (total / count).to(target.device, target.dtype)

    def _tensor(self, name: str, expected: tuple[int, ...]) -> Any:
        published = hf_name(name)
        tensor = self._file(self._where[published]).get_slice(published)
        if tuple(tensor.get_shape()) != expected:
            found = f"{published} has shape {tuple(tensor.get_shape())}"
            raise self._foreign(found, f"{expected}")
        return tensor

    def _file(self, part: Part) -> Any:
        if part.name not in self._open:
            path = self._store.open_path(part.blob)
            file = self._stack.enter_context(safe_open(path, framework="pt"))
            self._open[part.name] = self._unpacked(file) if has_packed(file.keys()) else file
        return self._open[part.name]

    def _unpacked(self, file: Any) -> Unpacked:
        return Unpacked(file, json.loads(self._store.read_bytes(self._parts[CONFIG].blob)))

    def _located(self) -> dict[str, Part]:
        """Return, for each tensor of the initial weights, the file that contains it."""
        try:
            if INDEX not in self._parts:
                return dict.fromkeys(self._file(self._parts[WEIGHTS]).keys(), self._parts[WEIGHTS])
            index = json.loads(self._store.read_bytes(self._parts[INDEX].blob))["weight_map"]
            return {part: self._parts[file] for tensor, file in index.items() for part in part_names(tensor)}
        except (KeyError, ValueError, TypeError, SafetensorError) as error:
            raise CheckpointError(
                f"the initial model {self._initial.digest[:12]} has no readable weights",
                found=f"{type(error).__name__}: {error}",
                expected=f"{WEIGHTS}, or {INDEX} and its files",
            ) from error

    def _require(self, config: RunConfig) -> None:
        with torch.device("meta"):
            model = Decoder(config.model, self._vocabulary)
        wanted = {hf_name(name) for name, _ in file_tensors(state(model))}
        found = {name for name in self._where if not name.endswith(DERIVED)}
        found -= {"lm_head.weight"} if config.model.tied_embeddings else set()
        wrong = [f"{name} missing" for name in sorted(wanted - found)]
        wrong += [f"{name} unknown" for name in sorted(found - wanted)]
        if wrong:
            raise self._foreign("; ".join(wrong), f"{len(wanted)} tensors")

    def _foreign(self, found: str, expected: str) -> CheckpointError:
        return CheckpointError(
            f"the tensors of the initial model {self._initial.digest[:12]} do not match the run's model",
            found=found,
            expected=expected,
        )


# Copies of the model's weights: FP32 master weights of a BF16 model without ZeRO, and the exponential mean.

# FP32 master weights and FP32 gradients of a BF16 model without ZeRO.
#
# DeepSpeed (0.19) accumulates BF16 gradients in BF16 there, and reads their norm on the host. Here PyTorch accumulates
# them in FP32 (`Tensor.grad_dtype`), DeepSpeed reduces them as the gradients of an FP32 run, and the optimizer steps
# the masters, which borrow the gradients for its step.


def master_weights(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups with an FP32 master weight in place of each parameter. The gradients of the parameters become
    FP32."""
    return [{**group, "params": [_master(parameter) for parameter in group["params"]]} for group in groups]


def _master(parameter: nn.Parameter) -> nn.Parameter:
    parameter.grad_dtype = torch.float32
    return nn.Parameter(parameter.detach().float())


class MasterWeights:
    """Link between the FP32 master weights of an optimizer and their parameters.

    The optimizer stores parameters and master weights under DeepSpeed's names (`fp16_groups`, `fp32_groups`), where
    checkpoints find them.
    """

    def __init__(self, groups: list[dict[str, Any]], optimizer: Any) -> None:
        self._optimizer = optimizer
        optimizer.fp16_groups = [group["params"] for group in groups]
        optimizer.fp32_groups = [group["params"] for group in optimizer.param_groups]
        optimizer.register_step_pre_hook(self._lend)

    def follow(self) -> None:
        """Register a hook that copies the new weights to the parameters after each step.

        Call this after registering other hooks that read the optimizer's gradients.
        """
        self._optimizer.register_step_post_hook(self._update)

    def _pairs(self) -> Iterator[tuple[Any, Tensor]]:
        for parameters, masters in zip(self._optimizer.fp16_groups, self._optimizer.fp32_groups, strict=True):
            yield from zip(parameters, masters, strict=True)

    def _lend(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter, master in self._pairs():
            master.grad = parameter.grad

    def _update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter, master in self._pairs():
            master.grad = None
            parameter.data.copy_(master.data)


# Exponential mean of the weights (EMA) during training.
#
#     mean <- mean + (1 - d) (w - mean),    d = decay, or decay ^ (tokens of the step / decay_tokens)
#
# It is an FP32 tensor of the optimizer's state, `ema`: divided over ranks like the masters, saved and restored with the
# moments, on any layout, without a gather. The first update initializes it with a copy. A skipped update (`found_inf`)
# does not change it. Equivalent to `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`.

#: Name in the optimizer's state and in checkpoints.
EMA = "ema"


def step_weight(optimizer: Optimizer, tokens: int) -> float:
    """Return the weight of the current parameters in the exponential mean (EMA) after a step of `tokens` tokens."""
    if optimizer.ema_decay is None:
        return 0.0
    return float(1 - optimizer.ema_decay ** (tokens / (optimizer.ema_tokens or tokens)))


class WeightAverage:
    """Exponential mean (EMA) of an optimizer's parameters. `weight` applies to the next step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.weight = 0.0
        optimizer.register_step_post_hook(self._follow)

    @torch.no_grad()
    def _follow(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Update the mean at the end of the optimizer's step.

        ZeRO-3 calls the optimizer several times per step, each time for a part of the parameters.
        """
        bad = getattr(optimizer, "found_inf", None)
        for flat in (flat for group in optimizer.param_groups for flat in group["params"]):
            state = optimizer.state.get(flat)
            if not state:  # before the first step
                continue
            if EMA not in state:
                state[EMA] = flat.detach().clone()
            elif bad is None:
                state[EMA].lerp_(flat, self.weight)
            else:  # finite weights: after a skipped update the factor 0 leaves the mean unchanged
                state[EMA].lerp_(flat, (bad.to(flat.device) == 0) * self.weight)
