"""docs/annotators.md: its annotator, its line and its test, taken from the page and run."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus import annotate
from plinth.corpus.annotate import base
from plinth.corpus.annotate.base import ANNOTATORS
from plinth.corpus.policy import policy
from plinth.corpus.policy.parameters import Policy, Rule
from plinth.storage.parts import read_table
from tests.catalogues import Including
from tests.rights import MIT

PAGE = Path(__file__).parents[4] / "docs" / "annotators.md"


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The page's Python: a file, a line of the registry, a test. The file is a module as if it lay in the folder."""
    found = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(found) == 3
    module = types.ModuleType("plinth.corpus.annotate.capitals")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(found[0], module.__dict__)
    monkeypatch.setattr(base, "ANNOTATORS", Including(ANNOTATORS, module.ANNOTATOR))
    return [str(block) for block in found]


def test_the_file_and_its_test(blocks: list[str]) -> None:
    space: dict[str, Any] = {}
    exec(blocks[2], space)
    tests = [value for name, value in space.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_the_line_is_one_of_the_registry(blocks: list[str]) -> None:
    source = Path(base.__file__).read_text(encoding="utf-8")
    form = re.escape(blocks[1]).replace("ANNOTATOR", r"\w+").replace("capitals", r"(\w+)", 1)
    form = form.replace("capitals", r"[\w.]+")
    assert tuple(re.findall(form, source)) == ANNOTATORS.built_in


def test_stage_and_policy_take_it(tiny: Any, blocks: list[str]) -> None:
    corpus = tiny.corpus({"notes": [[tiny.Doc("QUITE LOUD"), tiny.Doc("quite soft")]]})
    documents = corpus.documents["notes"]
    made = annotate.run(corpus.ctx, "notes", "capitals", {"max_characters": 5000}, documents)
    assert read_table(corpus.ctx.store, made.parts[0]).to_pydict() == {"share": [1.0, 0.0]}
    drop = re.search(r"drop: (capitals[^}]*)\}", PAGE.read_text(encoding="utf-8"))
    assert drop
    rules = Policy(rules=(Rule(reason="shouting", drop=drop[1]),))
    judged = policy.run(corpus.ctx, "notes", rules, documents, {"capitals": made}, MIT)
    assert judged.stats["dropped"] == {"shouting": 1}
