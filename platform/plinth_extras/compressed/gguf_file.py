"""GGUF files for llama.cpp: matrices in blocks of 32 weights with one FP16 scale, quantised by the package `gguf`.

    Q8_0   8 bits a weight, 8.5 with the scale
    Q4_0   4 bits a weight, 4.5 with the scale; embeddings and output are Q8_0 then

Gains stay FP32, and a matrix whose rows are no multiple of 32 is FP16, as in llama.cpp's converter. Tensors go through
memory one at a time. What the file holds is compared with what the quantiser gave, by digest of every tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from plinth.errors import IntegrityError
from plinth.extensions import require
from plinth.model.folder import SavedWeights, read_config
from plinth_extras.compressed import gguf_metadata, gguf_vocabulary
from plinth_extras.compressed.gguf_metadata import FREQUENCY_FACTORS, Floats

FILE: Final = "model.gguf"
BLOCK: Final = 32

#: Type of matrices, and the file's number for it (`LlamaFileType` of `gguf`).
_TYPES: Final = {"gguf-q8_0": ("Q8_0", "MOSTLY_Q8_0"), "gguf-q4_0": ("Q4_0", "MOSTLY_Q4_0")}
#: Read once per token, or decide every token: never below eight bits.
_ENDS: Final = ("model.embed_tokens.weight", "lm_head.weight")


def write(plain: Path, folder: Path, form: str) -> list[str]:
    """Write `model.gguf` from a folder in Hugging Face's layout; returns its name.

    Raises:
        CheckpointError: llama.cpp would compute another model, or encode other tokens.
        IntegrityError: a tensor of the file is not what the quantiser gave.
    """
    gguf = require("gguf", "quantised")
    config, path = read_config(plain), folder / FILE
    writer = gguf.GGUFWriter(path, config["model_type"])
    factors = gguf_metadata.frequency_factors(config)
    with SavedWeights(plain) as saved:
        names = gguf_metadata.tensor_names(config, [*saved])
        gguf_metadata.describe(writer, config, "plinth", int(gguf.LlamaFileType[_TYPES[form][1]]))
        gguf_vocabulary.describe(writer, plain, config)
        kinds = {name: _kind(gguf, form, name, tuple(saved.rows(name).get_shape())) for name in names}
        for name, kind in kinds.items():
            shape = tuple(saved.rows(name).get_shape())
            stored = gguf.quants.quant_shape_to_byte_shape(shape, kind) if len(shape) > 1 else (shape[0] * 4,)
            plain_shape = kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
            writer.add_tensor_info(
                names[name],
                shape if plain_shape else stored,
                np.dtype(np.float32) if plain_shape else np.dtype(np.uint8),
                int(np.prod(stored)),
                raw_dtype=kind,
            )
        if factors is not None:
            writer.add_tensor_info(FREQUENCY_FACTORS, factors.shape, factors.dtype, factors.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        written = {}
        for name, kind in kinds.items():
            data = gguf.quantize(_stored(saved.tensor(name), config, name), kind)
            writer.write_tensor_data(data)
            written[names[name]] = hashlib.sha256(np.ascontiguousarray(data).data).hexdigest()
        if factors is not None:
            writer.write_tensor_data(factors)
            written[FREQUENCY_FACTORS] = hashlib.sha256(factors.data).hexdigest()
    writer.close()
    require_same(path, written)
    return [FILE]


def require_same(path: Path, written: Mapping[str, str]) -> None:
    """Compare every tensor of a file with the SHA-256 of what the quantiser gave.

    Raises:
        IntegrityError: with the tensors that differ, are missing or were added.
    """
    gguf = require("gguf", "quantised")
    found = {
        one.name: hashlib.sha256(np.ascontiguousarray(one.data).view(np.uint8).data).hexdigest()
        for one in gguf.GGUFReader(path).tensors
    }
    wrong = sorted(name for name in found.keys() | written.keys() if found.get(name) != written.get(name))
    if wrong:
        raise IntegrityError(f"{path} is not what the quantiser gave", found=", ".join(wrong), remedy="export again")


def read(plain: Path, folder: Path, form: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `model.gguf` in FP32, by published name and in Hugging Face's order of rows."""
    gguf = require("gguf", "quantised")
    config = read_config(plain)
    with SavedWeights(plain) as saved:
        published = {own: name for name, own in gguf_metadata.tensor_names(config, [*saved]).items()}
    for one in gguf.GGUFReader(folder / FILE).tensors:
        if one.name == FREQUENCY_FACTORS:
            continue
        name = published[one.name]
        values: Floats = gguf.dequantize(one.data, one.tensor_type)
        heads = gguf_metadata.heads_of(config, name)
        yield name, torch.from_numpy(np.array(gguf_metadata.halves(values, heads) if heads else values))


def _kind(gguf: Any, form: str, name: str, shape: tuple[int, ...]) -> Any:
    """The type in which a tensor is stored."""
    types = gguf.GGMLQuantizationType
    if len(shape) == 1:
        return types.F32
    if shape[-1] % BLOCK:
        return types.F16
    return types.Q8_0 if name in _ENDS else types[_TYPES[form][0]]


def _stored(tensor: Tensor, config: Mapping[str, Any], name: str) -> Floats:
    values: Floats = tensor.float().numpy()
    heads = gguf_metadata.heads_of(config, name)
    return np.ascontiguousarray(gguf_metadata.neighbours(values, heads) if heads else values)
