"""Packed projections in model files: Phi-3 stores queries, keys and values in one matrix, and gate and up in another.

The decoder has one matrix per projection in every architecture, and so have checkpoints. Readers wrap an open tensor
file in `Unpacked`; an export packs the parts again, in this order. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

#: Packed tensors by the end of their name, and the ends of the names of their parts, in the order of the rows.
PACKED: Final[Mapping[str, tuple[str, ...]]] = {
    "self_attn.qkv_proj.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "mlp.gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}


def part_names(name: str) -> tuple[str, ...]:
    """Return the names of a tensor's parts in order; the name itself if the tensor is not packed."""
    for end, parts in PACKED.items():
        if name.endswith(end):
            return tuple(name.removesuffix(end) + part for part in parts)
    return (name,)


def packed_name(name: str) -> str:
    """Return the name of the packed tensor that contains a tensor."""
    for end, parts in PACKED.items():
        for part in parts:
            if name.endswith(part):
                return name.removesuffix(part) + end
    return name


def _sizes(name: str, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the number of rows of each part of a packed tensor."""
    if name.endswith("gate_up_proj.weight"):
        return (config["intermediate_size"],) * 2
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    keys = (config.get("num_key_value_heads") or heads) * width
    return heads * width, keys, keys


class Unpacked:
    """Open tensor file whose packed tensors are seen as their parts, with the methods of `safetensors.safe_open`.

    Raises:
        ValueError: a packed tensor does not have the rows that the configuration implies.
    """

    def __init__(self, file: Any, config: Mapping[str, Any]) -> None:
        self._file = file
        self._whole = [name for name in file.keys() if part_names(name) == (name,)]  # noqa: SIM118
        self._parts: dict[str, _Rows] = {}
        for name in sorted(set(file.keys()) - set(self._whole)):
            whole, sizes, first = file.get_slice(name), _sizes(name, config), 0
            if whole.get_shape()[0] != sum(sizes):
                raise ValueError(f"{name} has {whole.get_shape()[0]} rows, expected {sum(sizes)}")
            for part, size in zip(part_names(name), sizes, strict=True):
                self._parts[part] = _Rows(whole, first, size)
                first += size

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return [*self._whole, *self._parts]

    def get_tensor(self, name: str) -> Any:
        """Return a tensor."""
        return self._parts[name][:] if name in self._parts else self._file.get_tensor(name)

    def get_slice(self, name: str) -> Any:
        """Return a lazy tensor, whose rows are read when it is sliced."""
        return self._parts[name] if name in self._parts else self._file.get_slice(name)


class _Rows:
    """Rows `first` to `first + count` of a lazy tensor, as a lazy tensor of their own."""

    def __init__(self, whole: Any, first: int, count: int) -> None:
        self._whole, self._first, self._count = whole, first, count

    def get_shape(self) -> list[int]:
        return [self._count, *self._whole.get_shape()[1:]]

    def __getitem__(self, key: Any) -> Any:
        rows, *columns = key if isinstance(key, tuple) else (key,)
        start, stop, _ = rows.indices(self._count)
        shifted = slice(self._first + start, self._first + max(start, stop))
        return self._whole[(shifted, *columns)] if columns else self._whole[shifted]


def has_packed(names: Iterable[str]) -> bool:
    """Return True if a file has packed tensors."""
    return any(name.endswith(tuple(PACKED)) for name in names)
