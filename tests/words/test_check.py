"""The checker finds words where people read them, at their lines, and nowhere else."""

from __future__ import annotations

import pytest

from tests.words import check


def found(source: str, name: str = "jobs/plinth_jobs/x.py") -> list[tuple[int, str]]:
    return [(line, words) for line, words, _, _ in check.hits(name, source)]


MODULE = '''\
"""Foretell the loss.

A state that was
foretold, `foretold` as code.
"""
foretold = {"foretold": "foretold"}  # a key, and what
#                                      was learnt
LIMIT = f"so {foretold} many, so " "many {foretold}"


def foretell_loss(foretold):
    raise ValueError(
        "it was learnt so "
        "many times"
    )
'''


def test_prose_is_found_at_its_line_and_code_is_not() -> None:
    prose = [(1, "Foretell"), (4, "foretold"), (7, "learnt"), (8, "so many"), (13, "learnt"), (13, "so many")]
    assert found(MODULE) == [*prose, (11, "foretell")]


def test_of_tests_only_docstrings_and_comments_are_read() -> None:
    assert [line for line, _ in found(MODULE, "tests/test_x.py")] == [1, 4, 7]


@pytest.mark.parametrize("opening", ["What it is.", "How it is.", "Whether so.", "Who it is.", "Of it.", "So it is."])
def test_docstrings_and_descriptions_begin_otherwise(opening: str) -> None:
    word = f"{opening.split()[0]} …"
    assert found(f'def f():\n    """{opening}"""\n') == [(2, word)]
    assert found(f'X = Field(description="{opening}", title="{opening}")\n') == [(1, word)]
    assert found(f"#: The one.\n#: {opening}\nX = 1\n#: {opening}\nY = 2\n# {opening}\n") == [(4, word)]
    assert found(f'"""The thing. {opening}"""\n') == []


def test_exceptions() -> None:
    assert found("# N stands for a number; this value stands there.\n") == [(1, "stands")]
    assert found("# There is no file. It is no file.\n") == [(1, "is no file")]
    statistics = "platform/plinth/evaluation/statistics/x.py"
    assert found("# At all looks.\n") == [(1, "all looks")]
    assert found("# At all looks.\n", statistics) == []
    assert found("# A mark.\n", "registry/x.py") == [(1, "mark")]
    assert found("# A mark.\n") == []


def test_spelling_in_prose_not_in_names() -> None:
    assert found('def normalise():\n    """Normalise the licence.\n\n    licence: the key\n    """\n') == [
        (2, "Normalise"),
        (2, "licence"),
    ]
    written = {words: write for _, words, write, _ in check.hits("x.py", "# memorised, colours, labelled, analysed\n")}
    assert written == {"memorised": "memorized", "colours": "colors", "labelled": "labeled", "analysed": "analyzed"}
    assert found("# promised, raises, otherwise, precise, surprises, treatise, four hours of sources\n") == []


def test_other_files() -> None:
    page = "Learnt.\n\n```\nlearnt\n```\n`learnt` [learnt](learnt.md) `a\nlearnt` b\n"
    assert found(page, "docs/x.md") == [(1, "Learnt"), (6, "learnt")]
    assert found('<p class="learnt">learnt {{ learnt }}</p>', "x.html.j2") == [(1, "learnt")]
    assert found("learnt: 1  # learnt\n", "x.yaml") == [(1, "learnt")]
    code = "int learnt; /* learnt\n learnt */ int learnt; // learnt\n"
    assert found(code, "x.c") == [(1, "learnt"), (2, "learnt"), (2, "learnt")]


@pytest.mark.parametrize("line", ["    keep stands for", "    but stands for: a reason", "data tests/*"])
def test_an_exception_needs_a_reason(line: str) -> None:
    with pytest.raises(ValueError, match="a reason"):
        check.parse(f"stands -> is\n{line}\n")


def test_exit_status_and_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main("tests/words/words.txt") == 0
    assert capsys.readouterr().err == "     0 in all\n"
