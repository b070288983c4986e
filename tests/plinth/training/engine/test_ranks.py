"""What a rank loads before it trains."""

from __future__ import annotations

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
ranks._set_determinism(True, compiles=True)
assert sys.modules["torch._inductor.config"].deterministic and torch.get_deterministic_debug_mode() == 2
"""


def test_a_rank_on_cpus_loads_no_compiler_and_no_mlflow() -> None:
    command = [*processes.python("timeit")[:2], "-c", SCRIPT]
    done = processes.run(command, own={"DS_ACCELERATOR": "cpu"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ""
