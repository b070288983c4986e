"""Numbers as people write them, and colors that stay with their names."""

import pytest

from plinth.report import style


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (7, "7"), (9999, "9,999"), (10_190, "10.2 k"), (819_200, "819 k"), (8_700_000, "8.7 M"),
        (1.5, "1.5"), (3.2e15, "3.2e+03 T"),
    ],
)  # fmt: skip
def test_count(value: float, shown: str) -> None:
    assert style.count(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (48.3e6, "48.3 MB")])
def test_size(value: float, shown: str) -> None:
    assert style.size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(554.1, "554 s"), (0.6084, "0.608 s"), (0.002944, "2.94 ms"), (5.693e-05, "56.9 µs"), (0, "0 µs")],
)
def test_seconds_have_a_unit_that_a_person_reads(value: float, shown: str) -> None:
    assert style.seconds(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0%"), (1, "100%"), (0.5, "50%"), (0.1234, "12.3%"), (0.0004, "< 0.1%"), (0.99995, "> 99.9%")],
)
def test_percent_never_rounds_something_to_nothing_or_everything(share: float, shown: str) -> None:
    assert style.percent(share) == shown


def test_colours_depend_on_the_names_alone() -> None:
    assert style.colours(["web", "code"]) == style.colours(["code", "web", "web"])
    assert len(set(style.colours("abcdef").values())) == 6
    assert len(set(style.colours("abcdefghijklmnopqr").values())) == 18
    assert style.colours("abcdef").items() <= style.colours("abcdefghi").items()
