"""`plinth explain` in a terminal: missing values are omitted or written out in words."""

from __future__ import annotations

from typing import Any

import pytest

from plinth_jobs.cli import provenance


def test_what_has_no_value_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    trace: dict[str, Any] = {
        "id": "0" * 32, "uri": "note:1", "bucket": "notes", "status": "train", "reason": None,
        "document": {"captured_at": None, "licence": "MIT", "extra": {}, "row": 0, "preview": "text"},
        "source": {"date_field": "", "kind": "text", "repair_boundaries": False},
        "scores": {
            "fineweb2": {"word_count": None, "stop_words": None},
            "language": {"label": "en", "foreign": None, "damaged": 0.0},
        },
        "policy": {"keep": True, "reason": None, "fired": None},
        "protected": {"reason": None, "set": None},
    }  # fmt: skip
    provenance._show(trace)
    shown = capsys.readouterr().out
    assert "None" not in shown
    assert "captured_at" not in shown
    assert "date_field" not in shown
    assert "  language  label en, damaged 0.0\n" in shown
    assert "  fineweb2  no values, since they do not apply to this document\n" in shown
    assert "  repair_boundaries  no\n" in shown
    assert "policy\n  keep  yes\n" in shown
    assert "protected\n  none\n" in shown
    assert "  row      0\n" in shown
