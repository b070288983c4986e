"""Modules that a rank loads before it trains."""

from __future__ import annotations

import json

from plinth import processes

SCRIPT = """
import sys
import torch
from plinth.training.engine import ranks
ranks.import_deepspeed(cuda=False)
ranks._set_determinism(True, compiles=False)
import plinth.training.loop
assert torch.get_deterministic_debug_mode() == 2
print(*sorted({"mlflow", "pandas", "sympy", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
ranks.defer_dynamo()
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.AdamW([weight], fused=True)
weight.sum().backward()
optimizer.step()
optimizer.zero_grad()
kept = optimizer.state_dict()
optimizer.load_state_dict(kept)
print(weight.tolist())
print("torch._dynamo.eval_frame" in sys.modules, hasattr(sys.modules["torch._dynamo"], "__file__"))
compiled = torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)
assert compiled(weight).tolist() == (weight + 1).tolist()
assert "torch._dynamo.eval_frame" in sys.modules and torch._dynamo is sys.modules["torch._dynamo"]
import torch._dynamo.external_utils
assert torch._dynamo.disable(max) is not max
ranks._set_determinism(True, compiles=True)
assert sys.modules["torch._inductor.config"].deterministic and torch.get_deterministic_debug_mode() == 2

from datetime import timedelta
def joins(world_size):
    place = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": world_size}
    try:
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=0.1), **place)
        return torch.distributed.group.WORLD.group_name
    except torch.distributed.DistError:
        ranks.disconnect()
print(joins(2), joins(1))
"""


def test_a_rank_on_cpus_loads_no_mlflow_a_compiler_when_something_compiles_and_joins_again() -> None:
    command = [*processes.python("timeit")[:2], "-c", SCRIPT]
    done = processes.run(command, own={"DS_ACCELERATOR": "cpu"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first = 1 - 1e-3 * 1e-2 - 1e-3  # decay, and a step whose size is the learning rate
    *_, early, weight, loaded, joined = done.stdout.splitlines()
    assert early == ""
    assert [round(value, 6) for value in json.loads(weight)] == [round(first, 6)] * 4
    assert loaded == "False False"
    assert joined == "None 0"  # the second group has the name that it has in a process that replaces a lost rank
