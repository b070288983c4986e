"""Renew parts of `golden.json` after a change on purpose, then see `git diff`: `python -m tests.golden PART ... | all`.

    keys, columns, versions   of stages, tables and assets of the recipes (data.py)
    parameters                after 20 steps on a CPU (training.py)
    runs                      identities of 200 run configurations (runs.py)
    commands                  keys and types of every answer with `--json` (commands.py)

The archive of a released workspace (archive.py) is not renewed: that it still verifies is the point.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.golden.recorded import RENEW

HERE = Path(__file__).parent

if __name__ == "__main__":
    parts = sys.argv[1:]
    if not parts:
        sys.exit(__doc__)
    os.environ[RENEW] = "1"
    wanted = "golden" if parts == ["all"] else f"golden and ({' or '.join(parts)})"
    sys.exit(pytest.main(["-q", "-m", "", "-k", wanted, str(HERE), str(HERE.parent / "jobs" / "test_pipeline.py")]))
