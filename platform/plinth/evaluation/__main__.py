"""The child process: `python -m plinth.evaluation CONFIG`.

CONFIG is JSON: `model` (directory), `documents` (Parquet with a `text` column), `scores` (Parquet to write),
`batch_sequences`, `workers`. Progress goes to standard output, one JSON object a line; an error goes to
standard error, with a non-zero exit code.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

# One thread computes one batch; set before torch reads it.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"


def main(path: str) -> int:
    """Score the documents that CONFIG names. Returns the exit code."""
    gc.disable()  # a quarter of the time of these imports is collections
    import pyarrow as pa
    import pyarrow.parquet as pq

    from plinth.errors import PlinthError
    from plinth.evaluation import score

    gc.enable()
    config = json.loads(Path(path).read_text())
    try:
        checkpoint = score.load(Path(config["model"]))
        texts = pq.read_table(config["documents"], columns=["text"])["text"].to_pylist()
        scores = score.score(checkpoint, texts, config["batch_sequences"], config["workers"], _emit_progress)
    except PlinthError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    pq.write_table(pa.table({"tokens": scores.tokens, "bits": scores.bits}), config["scores"])
    return 0


def _emit_progress(done: int, total: int) -> None:
    print(json.dumps({"done": done, "total": total}), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
