"""Child process that holds the model: `python -m plinth.evaluation.engine FOLDER WORKERS`.

The first line of standard input is a JSON object with the SHA-256 of each file by name, or null. The process loads the
model in FOLDER and then answers one call per line. Each line is a JSON object: `call` (documents, likelihoods,
generate, serving), `asked` and `answer` (file paths), and options of the call. Each line of standard output is a JSON
object: `ready`, then for each call `done` and `total` as progress, then `answered` or `error`. Output of libraries goes
to standard error. The process exits when standard input closes.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# One thread computes one batch; set before torch reads it.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
# Threads that share one batch sleep while they wait, because spinning costs seconds on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from plinth.evaluation.engine.checkpoint import Checkpoint


class _Lines:
    """Writer of protocol lines to standard output. Other output to file descriptor 1 is redirected to standard
    error."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def say(self, **content: Any) -> None:
        self._stream.write(json.dumps(content) + "\n")

    def progress(self, done: int, total: int) -> None:
        self.say(done=done, total=total)


def main(folder: str, workers: int) -> int:
    """Answer calls until standard input ends."""
    lines = _Lines()
    gc.disable()  # collections take a quarter of the import time
    from plinth import private
    from plinth.errors import PlinthError
    from plinth.evaluation.engine import checkpoint

    gc.enable()
    private.for_torch()
    try:
        loaded = checkpoint.load(Path(folder), json.loads(sys.stdin.readline() or "null"))
    except PlinthError as error:
        lines.say(error=_described(error))
        return error.exit_code
    lines.say(ready={"device": loaded.device.type, "sequence_tokens": loaded.sequence_tokens})
    for line in sys.stdin:
        call = json.loads(line)
        try:
            _answer(loaded, call, workers, lines)
        except PlinthError as error:
            lines.say(error=_described(error))
        else:
            lines.say(answered=True)
    return 0


def _answer(loaded: Checkpoint, call: dict[str, Any], workers: int, lines: _Lines) -> None:
    from plinth.evaluation.engine import checkpoint, records
    from plinth.evaluation.engine.records import Sampling

    kind, asked, answer = call.pop("call"), Path(call.pop("asked")), Path(call.pop("answer"))
    options = {**call, "workers": workers, "progress": lines.progress}
    if kind == "documents":
        records.write_scores(answer, loaded.documents(records.read_texts(asked), **options))
    elif kind == "likelihoods":
        records.write_likelihoods(answer, loaded.likelihoods(records.read_requests(asked), **options))
    elif kind == "generate":
        sampling = Sampling(**options.pop("sampling"))
        records.write_generated(answer, loaded.generate(records.read_prompts(asked), sampling, **options))
    elif kind == "serving":
        answer.write_text(json.dumps(checkpoint.measured(loaded.model, loaded.sequence_tokens, workers)))
    else:
        raise ValueError(f"unknown call {kind!r}")


def _described(error: Any) -> dict[str, Any]:
    found, expected = (value if value is None else str(value) for value in (error.found, error.expected))
    kind = type(error).__name__
    return {"kind": kind, "what": error.what, "found": found, "expected": expected, "remedy": error.remedy}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2])))
