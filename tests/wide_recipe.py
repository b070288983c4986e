"""A recipe with any number of buckets: growth with the size of a recipe is measured on it.

Buckets are named after their place and one of three kinds in turn; those of code have the policy of code. The files
that they name are there, with one document each; nothing has been derived from them.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.jobs.conftest import RECIPE

KINDS = ("web", "prose", "code")


def write(workspace: Path, buckets: int) -> Path:
    """The recipe file, in the workspace, with the sources in its `input/`."""
    named = {f"{KINDS[number % 3]}_{number:02}": number for number in range(buckets)}
    for name in named:
        source = workspace / "input" / "wide" / f"{name}.jsonl"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(f'{{"text": "text of {name}", "url": "https://{name}.example/1"}}\n')
    tiny = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    phases = [{**phase, "weights": dict.fromkeys(named, 1)} for phase in tiny["mixture"]["phases"]]
    tiny["corpus"]["buckets"] = {name: _bucket(name) for name in named}
    tiny["mixture"]["phases"] = phases
    tiny["extends"] = "base.yaml"
    path = workspace / "wide.yaml"
    path.write_text(yaml.safe_dump(tiny | {"name": "wide"}, sort_keys=False), encoding="utf-8")
    return path


def _bucket(name: str) -> dict[str, object]:
    source = {
        "kind": "jsonl",
        "path": f"wide/{name}.jsonl",
        "licence": "CC0-1.0",
        "terms": {"train": True, "redistribute": True, "commercial": True},
        "domain": f"{name}.example",
        "snapshot": "2026-46",
    }
    policy = {"policy": "code"} if name.startswith("code") else {}
    return {"description": f"Synthetic: {name}.", "owner": "tests@example.org", "sources": [source], **policy}
