"""The description of an architecture, and where to find each. Free of torch.

An architecture `name` is the package `plinth.model.name`: its `ARCHITECTURE` is this description, its block declares
division and initial values. `Model.architecture` lists the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, get_args

from plinth.model.parameters import ArchitectureName, Model


class BlockCounts(NamedTuple):
    """Parameters of one block by place."""

    attention: int
    feed_forward: int
    norms: int
    biases: int = 0


class Norm(NamedTuple):
    """A norm of a block, by what the backward pass keeps of a token."""

    width: int  # values of its input
    statistics: int = 1  # one of each group that is normalised by itself
    divided: bool = False  # over tensor ranks
    over_ranks: bool = False  # each statistic is of all tensor ranks' values, so that no fused kernel computes it


class Published(NamedTuple):
    """A model type of Hugging Face, and the fields of `Model` which it implies beside the architecture."""

    model_type: str
    class_name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Architecture:
    """Everything particular to an architecture that needs no tensors."""

    block: str  # module and class, which needs torch and is imported when a decoder is built
    counts: Callable[[Model], BlockCounts]
    norms: Callable[[Model], tuple[Norm, ...]]
    published: tuple[Published, ...]
    recomputes_output: bool  # a block that is computed again does so to the end: its backward pass wants the output

    def block_class(self) -> Any:
        """The class of its blocks: (config, index, division) -> `Block`."""
        module, name = self.block.split(":")
        return getattr(import_module(module), name)

    def published_as(self, model: Model) -> Published:
        """The model type as which `model` is exported."""
        return next(one for one in self.published if all(getattr(model, key) == one.fields[key] for key in one.fields))


def architecture(name: ArchitectureName) -> Architecture:
    """The description of an architecture."""
    found: Architecture = import_module(f"plinth.model.{name}").ARCHITECTURE
    return found


def published() -> Iterator[tuple[ArchitectureName, Published]]:
    """Every model type of Hugging Face that can be read, with its architecture."""
    for name in get_args(ArchitectureName):
        yield from ((name, one) for one in architecture(name).published)
