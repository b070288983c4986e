"""Our side of a comparison: what a profile makes of texts, by its annotators and its rules and nothing else."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

from plinth.corpus.annotate.base import annotator
from plinth.corpus.policy.compiled_policy import columns_of
from plinth.corpus.policy.expressions import parse
from plinth.corpus.policy.profiles import profile
from tests.agreement.lines import cut

Verdict = tuple[str, str | None]


def verdicts(name: str, texts: Sequence[str]) -> list[Verdict]:
    """The first rule of the profile that fires, or "keep", and the page that its edits leave."""
    chosen = profile(name)
    types = columns_of(tuple(chosen.annotators))
    rules = [(reason, parse(drop, types, reason)) for reason, drop in chosen.rules]
    found: list[Verdict] = []
    for start in range(0, len(texts), 1024):
        some = list(texts[start : start + 1024])
        columns = _columns(chosen.annotators, some)
        reasons = ["keep"] * len(some)
        for reason, rule in reversed(rules):
            fired = rule.evaluate(columns, len(some)).tolist()
            reasons = [reason if fires else before for fires, before in zip(fired, reasons, strict=True)]
        spans = columns[chosen.edits[0][1]].to_pylist() if chosen.edits else [None] * len(some)
        for text, reason, edits in zip(some, reasons, spans, strict=True):
            found.append((reason, cut(text, edits) if edits is not None and reason == "keep" else None))
    return found


def _columns(annotators: Any, texts: list[str]) -> dict[str, pa.Array]:
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    columns = {}
    for name, params in annotators.items():
        made = annotator(name).annotate(batch, annotator(name).params(**params))
        columns |= {f"{name}.{field.name}": made.column(field.name) for field in made.schema}
    return columns


@lru_cache(maxsize=4)
def real_documents(most: int, size: int) -> list[str]:
    """Texts of this machine, each different: documentation, sources, licenses and their docstrings, in a fixed order.

    Args:
        most: maximum number of texts.
        size: maximum number of characters per text.
    """
    texts: dict[str, None] = {}
    for path in _files():
        text = path.read_bytes()[: 4 * size].decode("utf-8", "replace")[:size]
        if len(text) > 20:
            texts[text] = None
        if path.suffix == ".py":
            pieces = text.split('"""')[1::2]
            texts |= dict.fromkeys(piece for piece in pieces if len(piece) > 200)
        if len(texts) >= most:
            break
    return list(texts)[:most]


KINDS = (".md", ".rst", ".txt", "METADATA", "LICENSE", "copyright", ".html", ".py")


@lru_cache(maxsize=1)
def _files() -> tuple[Path, ...]:
    """Kinds take turns, so that any number of documents has some of each."""
    kinds: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "/usr/share/doc"):
        for folder, below, names in os.walk(root):
            below[:] = sorted(name for name in below if name not in ("site-packages", "__pycache__"))
            for name in sorted(names):
                kind = next((one for one in KINDS if name == one or name.endswith(one)), None)
                if kind and (path := Path(folder, name)).is_file():
                    kinds[kind].append(path)
    turns = zip_longest(*kinds.values())
    return tuple(path for turn in turns for path in turn if path is not None)
