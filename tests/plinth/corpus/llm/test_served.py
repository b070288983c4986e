"""The annotator against a real server: `transformers serve` with a model that Plinth exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.corpus.llm.parameters import Endpoint
from plinth.errors import EndpointError
from plinth.storage.parts import read_table
from tests.plinth.corpus.llm import served
from tests.plinth.corpus.llm.prompts import prompt_list

TEXTS = ["a sentence ends.", "this does not end", "an older sentence.", "the fourth"]


@pytest.mark.slow
def test_a_model_that_plinth_exported_labels_documents(tiny: Any, tmp_path: Path) -> None:
    corpus = tiny.corpus({"web": [[tiny.Doc(text) for text in TEXTS]]})
    ctx = Context(corpus.ctx.workspace)
    model = served.export(tmp_path)
    raw = {"endpoint": "local", "model": str(model), "prompt": "rate", "max_tokens": 8,
           "columns": {"score": {"type": "integer"}}}  # fmt: skip
    prompt = {"lists/rate": prompt_list(ctx, b"Rate this text: {text}")}
    with served.served(model, tmp_path / "log") as url:
        endpoints = {"local": Endpoint(url=url, concurrency=2)}

        def label(**given: Any) -> Any:
            return annotate.run(ctx, "web", "llm", raw | given, corpus.documents["web"], prompt, endpoints=endpoints)

        with pytest.raises(EndpointError, match="@main"):  # a revision that the recipe does not name
            label()
        made = label(reports=f"{model}@main")
        cut = label(reports=f"{model}@main", max_tokens=1, max_reject_rate=1.0)
    table = pa.concat_tables(read_table(ctx.store, part) for part in made.parts)
    assert table.column("score").to_pylist() == [1, 4, 1, 4]
    answers = ctx.refs.load(made.inputs["web/answers"])
    assert (answers.stats["answers"], answers.stats["output_tokens"]) == (4, 8)
    assert cut.stats["labels"]["reason"] == {"truncated": 4}
