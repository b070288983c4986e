"""The data card: exact pages, including the statement that nothing is screened."""

import pytest

from plinth.report.page import CardBucket, Screening, card

WEB = CardBucket("web", "Pages | and\nmore.", ("MIT", "CC0-1.0"), 1200, 900, 4_500_000)
BOOKS = CardBucket("books", "Books.", ("CC0-1.0",), 10, 10, 9000)


@pytest.mark.parametrize(
    ("rules", "state"),
    [
        ({}, "not screened"),
        ({"web": (), "books": ()}, "not screened"),
        ({"web": ("a.b > 1",), "books": ()}, "not screened in books"),
        ({"web": ("a.b > 1",), "books": ("a.b > 1",)}, "screened"),
    ],
)
def test_state(rules: dict[str, tuple[str, ...]], state: str) -> None:
    assert Screening("toxicity", rules).state(["web", "books"]) == state


def test_page() -> None:
    rules = {"web": ("toxicity.final > 0.5",), "books": ("toxicity.final > 0.5",)}
    screenings = [Screening("toxicity", rules, ("removes of books: 0 of 10",)), Screening("illegal content", {})]
    assert card("mine", "", [WEB, BOOKS], screenings) == (
        "# Data card: mine\n"
        "\n"
        "## Text\n"
        "\n"
        "| bucket | what | licences | documents | curated | curated text, bytes |\n"
        "|---|---|---|---|---|---|\n"
        "| web | Pages \\| and more. | MIT, CC0-1.0 | 1,200 | 900 | 4,500,000 |\n"
        "| books | Books. | CC0-1.0 | 10 | 10 | 9,000 |\n"
        "\n"
        "## Screening\n"
        "\n"
        "| subject | state | rules | how often they are right |\n"
        "|---|---|---|---|\n"
        "| toxicity | **screened** | `toxicity.final > 0.5` | removes of books: 0 of 10 |\n"
        "| illegal content | **not screened** | - | - |\n"
    )


def test_a_test_recipe_says_so() -> None:
    assert "This is a test recipe" in card("mine", "", [WEB], [], test=True)
    assert "This is a test recipe" not in card("mine", "", [WEB], [])
