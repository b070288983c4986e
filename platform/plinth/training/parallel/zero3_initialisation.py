"""Initial weights under ZeRO-3: every rank computes or reads its own range of each parameter; nothing is sent.

DeepSpeed's `zero.Init` (0.19) would take whole parameters, send rank 0's to all and keep a range of each: of the work
of drawing 70B numbers no rank would be spared any. Here a parameter is whole only as an address range: a rank writes
its rows, DeepSpeed copies its range out of them and frees the rest, which on CPUs was never touched. What DeepSpeed
keeps is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from plinth.model.division import Placement, Role, declarations
from plinth.model.initialisation import WeightSource


def partition_initialised(model: nn.Module, initial: WeightSource, settings: dict[str, Any], mpu: Any) -> None:
    """Divide an empty, undivided model over the ranks of ZeRO-3, each range with its values; a collective.

    Args:
        model: its parameters become DeepSpeed's.
        initial: the weights.
        settings: those of `deepspeed.initialize`.
        mpu: as there.
    """
    from deepspeed.runtime.zero.partition_parameters import Init

    declared = declarations(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    class OwnRange(Init):  # type: ignore[misc]
        def _zero_init_param(self, parameter: Any) -> None:
            parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.local_device)
            self._convert_to_deepspeed_param(parameter)
            each = -(-parameter.numel() // self._partition_world_size(parameter))
            name, start = names[id(parameter)], each * self._partition_rank(parameter)
            fill_range(parameter.data, initial, name, declared[name].role, start, each)
            parameter.partition()

    group = None if mpu is None else mpu.get_data_parallel_group()
    OwnRange(module=model, data_parallel_group=group, config_dict_or_path=settings, mpu=mpu)


def fill_range(whole: Tensor, initial: WeightSource, name: str, role: Role, start: int, count: int) -> None:
    """Write elements `start` … `start + count` of the flattened parameter, and the others in their rows."""
    if whole.dim() < 2:
        initial.fill(whole, name, role, Placement(tuple(whole.shape)))
        return
    rows, columns = whole.shape
    first, last = min(start // columns, rows), min(-(-(start + count) // columns), rows)
    initial.fill(whole[first:last], name, role, Placement((rows, columns), row=first))
