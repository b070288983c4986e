"""The line of provenance, with a ledger; and a corpus that documents are removed from."""

from pathlib import Path
from typing import Any

import pytest

from plinth.provenance import ledger
from tests.plinth.provenance.conftest import built, line
from tests.taken_corpus import Corpus

__all__ = ["built", "line"]


@pytest.fixture
def held(line: Any) -> Any:
    """The line with the ledger of its two buckets: a near duplicate, a dropped and a held-out document."""
    buckets = ("prose", "code")

    def of(kind: str) -> dict[str, Any]:
        return {bucket: line.made[f"{bucket}/{kind}"] for bucket in buckets}

    made = ledger.Made(
        documents=of("documents"),
        policies=of("policy"),
        verdicts=of("verdicts"),
        annotations={"language": of("language")},
        shared={"exact": line.made["dedup/exact"], "near": line.made["dedup/minhash"]},
        curated=of("curated"),
        shards=of("shards"),
        mixture=line.made["mixture"],
    )
    line.keep(ledger.run(line.ctx, made))
    return line


@pytest.fixture(scope="session")
def whole_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    made = Corpus(tmp_path_factory.mktemp("taken"))
    made.build()
    return made


@pytest.fixture
def corpus(whole_corpus: Corpus, tmp_path: Path) -> Corpus:
    """A copy that a test may change."""
    return whole_corpus.copied(tmp_path / "copy")
