"""lm-evaluation-harness' own numbers: `HFLM` on an exported folder. Run as a script; writes JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROLLING = ("sentences", "pages")


def main(model: str, files: str, out: str) -> None:
    """Every task; texts that are rolled over have their first token from `HFLM` itself, prompts from the tokenizer."""
    import torch
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    torch.set_num_threads(1)
    os.chdir(files)
    manager = TaskManager(include_path=files, include_defaults=False)
    found: dict[str, dict[str, object]] = {"results": {}, "samples": {}}
    for rolling in (True, False):
        names = [name for name in manager.all_subtasks if (name in ROLLING) == rolling]
        lm = HFLM(model, device="cpu", dtype="float32", batch_size=4, add_bos_token=not rolling)
        made = simple_evaluate(lm, tasks=names, task_manager=manager, bootstrap_iters=0)
        assert made is not None
        found["results"] |= made["results"]
        found["samples"] |= {
            name: [[one["doc_hash"], one["filter"], one["filtered_resps"]] for one in samples]
            for name, samples in made["samples"].items()
        }
    Path(out).write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
