"""Labels of reviewers: written, read back, the latest counts, and invalid labels are named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plinth.corpus.slices import reviews
from plinth.corpus.slices.reviews import Review
from plinth.errors import SourceError
from plinth.storage.workspace import Workspace

ID = "0123456789abcdef" * 2


def said(label: str = "good", time: str = "2026-01-01T00:00:00Z", **more: str) -> Review:
    return Review.model_validate(
        {"id": ID, "reason": "toxic", "label": label, "reviewer": "ada@example.org", "time": time} | more
    )


def test_the_latest_label_of_a_document_and_reason_counts(tmp_path) -> None:
    workspace = Workspace(tmp_path)
    assert reviews.read(workspace) == ()
    empty = reviews.digest(workspace)
    path = reviews.append(workspace, [said("bad"), said("good", "2026-01-02T00:00:00+01:00")])
    assert path == tmp_path / "reviews" / "ada_example.org.jsonl"
    reviews.append(workspace, [said("bad", reason="spam")])
    reviews.append(workspace, [said("bad", "2025-01-01T00:00:00Z", reviewer="../bob")])
    assert len(list((tmp_path / "reviews").iterdir())) == 2
    assert [(one.reason, one.label) for one in reviews.read(workspace)] == [("spam", "bad"), ("toxic", "good")]
    assert reviews.digest(workspace) != empty


def test_one_call_takes_the_labels_of_one_reviewer(tmp_path) -> None:
    for given in ([], [said(), said(reviewer="bob")]):
        with pytest.raises(ValueError, match="from one reviewer"):
            reviews.append(Workspace(tmp_path), given)


def test_parquet_is_read_too(tmp_path) -> None:
    (tmp_path / "reviews").mkdir()
    pq.write_table(pa.Table.from_pylist([said().model_dump()]), tmp_path / "reviews" / "a.parquet")
    assert reviews.read(Workspace(tmp_path)) == (said(),)


@pytest.mark.parametrize(
    "change",
    [{"label": "maybe"}, {"id": "12"}, {"time": "yesterday"}, {"time": "2026-01-01T00:00:00"}, {"reviewer": ""},
     {"more": 1}],
)  # fmt: skip
def test_what_is_no_label_is_named_by_its_line(tmp_path, change) -> None:
    (tmp_path / "reviews").mkdir()
    lines = [said().model_dump(), said().model_dump() | change]
    (tmp_path / "reviews" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(SourceError, match=r"a\.jsonl:2 is not a review"):
        reviews.read(Workspace(tmp_path))
    (tmp_path / "reviews" / "a.jsonl").write_text('{"id": ')
    with pytest.raises(SourceError, match="cannot be read"):
        reviews.read(Workspace(tmp_path))
