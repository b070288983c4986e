"""A judged corpus whose terms allow redistribution, with its ledger and data card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plinth.compute.context import Context, manifest
from plinth.provenance import ledger
from plinth.records import Manifest, Part, Step
from plinth_audit.text_export.export import export
from plinth_audit.text_export.manifest import TextExport
from tests import judged_corpus
from tests.judged_corpus import PLANTED, ledger_of

PAGE = "# Data card: judged\n"


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(judged_corpus.SOURCE["terms"], "redistribute", True)
        ctx = judged_corpus.build(tmp_path_factory.mktemp("judged"))
    ctx.refs.publish(ledger.run(ctx, ledger_of(ctx)), "key")
    ctx.refs.publish(card_of(ctx), "key")
    return ctx


def card_of(ctx: Context, screening: dict[str, str] | None = None, **measured: Manifest) -> Manifest:
    part = Part(name="data_card.md", blob=ctx.store.put_bytes(PAGE.encode()))
    texts = {f"{bucket}/curated": ctx.refs.current(f"{bucket}/curated") for bucket in PLANTED}
    stats = {"name": "judged", **({"screening": screening} if screening else {})}
    return manifest("data_card", Step(name="data_card", version="1"), texts | measured, [part], stats)


def run(
    ctx: Context,
    to: object,
    kind: str = "parquet",
    buckets: tuple[str, ...] = tuple(PLANTED),
    card: Manifest | None = None,
) -> TextExport:
    return export(ctx, buckets, kind, str(to), "judged", card or ctx.refs.current("data_card"), PAGE)
