"""Who writes which parameter of the model: whole parameters, divided over ranks by bytes.

The ranks that hold a part of a parameter may write it: those of its pipeline stage. Each stage deals its parameters,
the largest first, to the rank that has least (Graham's rule): no rank writes more than the mean and one parameter.
Every rank computes the same division, so nothing is sent.

Does not belong here: the tensors (model_share).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from plinth.model.hugging_face import INDEX, WEIGHTS, config_text, hf_name

#: A file of fewer bytes is not worth opening: a smaller model is written by fewer ranks.
LEAST_FILE_BYTES = 1 << 20


class WholeParameter(NamedTuple):
    """A whole parameter: its name in `Decoder`, and its bytes."""

    name: str
    bytes: int


def divide(
    stages: Iterable[tuple[Sequence[WholeParameter], Sequence[int]]], least: int = LEAST_FILE_BYTES
) -> dict[str, int]:
    """The rank that writes each parameter.

    Args:
        stages: parameters that some ranks hold between them, and these ranks.
        least: bytes below which a file is not divided further.
    """
    found = {}
    for parameters, ranks in stages:
        total = sum(one.bytes for one in parameters)
        writers = ranks[: max(1, min(len(ranks), total // max(least, 1)))]
        loads = [(0, place) for place in range(len(writers))]
        heapify(loads)
        for one in sorted(parameters, key=lambda one: (-one.bytes, one.name)):
            load, place = loads[0]
            heapreplace(loads, (load + one.bytes, place))
            found[one.name] = writers[place]
    return found


def file_names(division: Mapping[str, int]) -> dict[int, str]:
    """The file of each rank that writes: numbered in rank order, as `transformers` numbers them; one alone is whole."""
    writers = sorted(set(division.values()))
    if len(writers) == 1:
        return {writers[0]: WEIGHTS}
    count = len(writers)
    return {rank: f"model-{number:05d}-of-{count:05d}.safetensors" for number, rank in enumerate(writers, 1)}


def index_text(division: Mapping[str, int], total_bytes: int) -> dict[str, str]:
    """The file that says which file holds which tensor, by its name; none where one file holds all."""
    names = file_names(division)
    if len(names) == 1:
        return {}
    where = {hf_name(name): names[rank] for name, rank in sorted(division.items())}
    return {INDEX: config_text({"metadata": {"total_size": total_bytes}, "weight_map": where})}
