"""Real text of this machine: programs, descriptions of packages and licenses are told apart on documents held back."""

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus import models

LIBRARIES = Path(sysconfig.get_path("purelib"))


def pieces(paths: list[Path], most: int) -> list[str]:
    """Stretches of about 2,000 characters, one of each file, in a fixed order."""
    texts = []
    for path in sorted(paths):
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) > 600:
            start = len(text) // 3
            texts.append(text[start : start + 2000])
    return list(dict.fromkeys(texts))[:most]


@pytest.fixture
def documents(tiny: Any) -> Any:
    kinds = {
        "code": list(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))[:600],
        "descriptions": list(LIBRARIES.glob("*.dist-info/METADATA")),
        "modules": list(LIBRARIES.glob("*/*.py"))[:600],
    }
    made = {name: pieces(paths, 400) for name, paths in kinds.items()}
    if min(map(len, made.values())) < 100:
        pytest.skip("too few packages are installed here to learn from")
    return tiny.corpus({name: [[tiny.Doc(text, f"{name}/{at}") for at, text in enumerate(some)]]
                        for name, some in made.items()}).documents  # fmt: skip


@pytest.mark.slow
def test_auc_on_real_text(tiny: Any, documents: Any) -> None:
    raw = {"kind": "classifier", "reference": ["descriptions"], "random": ["modules"], "bits": 18}
    quality = models.train(tiny.ctx, "quality", raw, documents, {}).stats
    assert quality["auc"] > 0.97
    assert quality["final_auc"] > 0.97
    assert quality["final_ece"] < 0.1
    raw = {"kind": "tagger", "labels": {"code": ["code"], "descriptions": ["descriptions"], "modules": ["modules"]},
           "bits": 18}  # fmt: skip
    domain = models.train(tiny.ctx, "domain", raw, documents, {}).stats
    assert domain["labels"]["descriptions"]["auc"] > 0.97
    assert domain["worst_auc"] > 0.7  # the standard library against other libraries: both are Python
    assert domain["accuracy"] > 0.7
