"""The annotator `extraction`: the value in a document's metadata, and metadata that is no value."""

from __future__ import annotations

import pyarrow as pa
import pytest

from plinth.corpus.annotate.extraction import annotate_extraction
from plinth.extensions import NoParams


@pytest.mark.parametrize(
    ("extra", "risk"),
    [
        ('{"extraction_risk": "0.92"}', 0.92),
        ('{"title": "T", "extraction_risk": "3"}', 3.0),
        ("{}", 0.0),
        ('{"title": "extraction_risk"}', 0.0),
        ('{"extraction_risk": "very"}', 0.0),
        ('{"extraction_risk": ["1"]}', 0.0),
        ('{"extraction_risk": "nan"}', 0.0),
        ('{"extraction_risk": "inf"}', 0.0),
    ],
)
def test_the_value_in_the_metadata(extra: str, risk: float) -> None:
    batch = pa.record_batch({"extra": pa.array(["{}", extra])})
    assert annotate_extraction(batch, NoParams()).to_pydict() == {"risk": [0.0, risk]}
