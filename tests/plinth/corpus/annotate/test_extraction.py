"""The annotator `extraction`: the values in a document's metadata, and metadata that is no value."""

from __future__ import annotations

import pyarrow as pa
import pytest

from plinth.corpus.annotate.extraction import annotate_extraction
from plinth.extensions import NoParams


@pytest.mark.parametrize(
    ("extra", "unsure", "teasers"),
    [
        ('{"extraction_unsure": "0.92"}', 0.92, 0.0),
        ('{"title": "T", "extraction_unsure": "3", "extraction_teasers": "0.7"}', 3.0, 0.7),
        ('{"extraction_teasers": "1.00"}', 0.0, 1.0),
        ("{}", 0.0, 0.0),
        ('{"title": "extraction_unsure"}', 0.0, 0.0),
        ('{"extraction_unsure": "very", "extraction_teasers": "0.5"}', 0.0, 0.5),
        ('{"extraction_unsure": ["1"]}', 0.0, 0.0),
        ('{"extraction_unsure": "nan"}', 0.0, 0.0),
        ('{"extraction_unsure": "inf"}', 0.0, 0.0),
    ],
)
def test_the_values_in_the_metadata(extra: str, unsure: float, teasers: float) -> None:
    batch = pa.record_batch({"extra": pa.array(["{}", extra])})
    assert annotate_extraction(batch, NoParams()).to_pydict() == {"unsure": [0.0, unsure], "teasers": [0.0, teasers]}
