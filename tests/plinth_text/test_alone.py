"""The package works alone: its README's example runs where nothing of Plinth can be imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import plinth_text
from plinth_text import private

FOLDER = Path(plinth_text.__file__).parent
CALL = """
import numpy as np
from plinth_text.unicode import utf8
from vowels import vowels
vowels(*utf8(texts), out := np.zeros(len(texts), np.int64))
print("vowels", out.tolist())
import sys
assert not [name for name, module in sys.modules.items() if name.split(".")[0] == "plinth" and module]
"""


def test_the_examples_of_its_readme(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "plinth_text", ignore=shutil.ignore_patterns("__pycache__", "carried"))
    example, module, source = re.findall(r"```(?:python|c)\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    (tmp_path / "vowels").mkdir()
    (tmp_path / "vowels" / "__init__.py").write_text("from vowels.vowels import vowels\n")
    (tmp_path / "vowels" / "vowels.py").write_text(module)
    (tmp_path / "vowels" / "vowels.c").write_text(source)
    refused = "import sys\nsys.modules['plinth'] = None\n"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), private.VARIABLE: str(private.root())}
    command = [sys.executable, "-c", refused + example + CALL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "words [11, 6, 1]",
        "stop words [3, 1, 0]",
        "similarity 0.5",
        "vowels [11, 6, 0]",
    ], done.stderr
