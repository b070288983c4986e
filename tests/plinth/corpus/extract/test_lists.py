"""Lists of the main content: which are kept, and the numbers that a reader sees."""

from __future__ import annotations

import pytest

from plinth.corpus.extract.worker import engine

PROSE = "<p>" + "The keeper of the mill writes down every sack of grain that a farmer brings. " * 3 + "</p>"
LIST = "<ul><li>Rye from the north field</li><li>Barley for the brewer</li></ul>"
LINKS = "<ul><li><a href=a>Rye from the north field</a></li><li><a href=b>Barley for the brewer</a></li></ul>"
NUMBERS = [
    ("<ol><li>x<li>x", "1. 2."),
    ("<ol start=3><li>x<li>x", "3. 4."),
    ("<ol start=0><li>x<li>x", "0. 1."),
    ("<ol start=-1><li>x<li>x", "-1. 0."),
    ("<ol start='7th'><li>x<li>x", "7. 8."),
    ("<ol start=x type=q><li>x<li>x", "1. 2."),
    ("<ol reversed><li>x<li>x<li>x", "3. 2. 1."),
    ("<ol reversed start=10><li>x<li>x", "10. 9."),
    ("<ol><li>x<li value=5>x<li>x", "1. 5. 6."),
    ("<ol reversed><li>x<li value=9>x<li>x", "3. 9. 8."),
    ("<ol type=a><li>x<li>x", "a. b."),
    ("<ol type=A start=26><li>x<li>x<li>x", "Z. AA. AB."),
    ("<ol type=i start=3><li>x<li>x", "iii. iv."),
    ("<ol type=I start=1994><li>x", "MCMXCIV."),
    ("<ol type=I start=3999><li>x<li>x", "MMMCMXCIX. 4000."),
    ("<ol type=a start=0><li>x<li>x", "0. a."),
    ("<ol><li type=a>x<li>x", "a. 2."),
    ("<OL START=2 TYPE=i><LI>x<LI>x", "ii. iii."),
    ("<ol style='list-style-type: lower-alpha'><li>x<li>x", "a. b."),
    ("<ol style='list-style: upper-roman inside'><li>x<li>x", "I. II."),
    ("<ol style='list-style:none'><li>x<li>x", ""),
]
KEPT = "  • Rye from the north field\n  • Barley for the brewer"


def text(inner: str) -> str:
    """Main content of a page with this body."""
    return engine("resiliparse")(f"<!DOCTYPE html><html><head><title>T</title></head><body>{inner}</body></html>")[0]


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "<div>{}</div>",
        "<main>{}</main>",
        "<article>{}</article>",
        "<div><div>{}</div></div>",
        "<div><section><article>{}</article></section></div>",
        "<table><tr><td>{}</td></tr></table>",
    ],
)
@pytest.mark.parametrize("found", [LIST, LINKS, f"<div class=wrap>{LIST}</div>", f"<div>{LINKS}</div>"])
def test_a_list_among_prose_is_kept_at_every_depth(around: str, found: str) -> None:
    assert KEPT in text(around.format(PROSE + found + PROSE))
    assert KEPT in text(around.format(found + PROSE))


def test_a_list_without_links_needs_no_prose_next_to_it() -> None:
    recipe = "<section><h2>Ingredients</h2><ul><li>200 g flour</li><li>2 eggs</li></ul></section>"
    assert text(f"<article><h1>Pancakes</h1>{recipe}<section>{PROSE}</section></article>").startswith(
        "Pancakes\n\nIngredients\n\n  • 200 g flour\n  • 2 eggs\n\nThe keeper"
    )


@pytest.mark.parametrize(
    "menu",
    [
        f"<div>{LINKS}</div>",
        f"<nav>{LIST}</nav>",
        f"<aside>{PROSE}{LIST}</aside>",
        f'<div class="sidebar">{PROSE}{LINKS}</div>',
        LINKS.replace("<ul", '<ul class="nav"'),
        f"<footer>{LIST}</footer>",
        f"<div><p>Menu</p>{LINKS}</div>",
        f"<div><p><a href=a>{'A long teaser that leads to another page. ' * 5}</a></p>{LINKS}</div>",
    ],
)
def test_navigation_stays_out(menu: str) -> None:
    found = text(f"<div>{menu}<div><article>{PROSE}</article></div></div>")
    assert "Rye" not in found
    assert "Barley" not in found


def test_lists_inside_kept_lists_are_kept_and_indented() -> None:
    oats = "<li>Oats<ol><li>white</li><li>black</li></ol></li>"
    nested = f"<ul><li>Grain<ul><li><a href=a>Rye</a></li>{oats}</ul></li></ul>"
    found = text(f"<article>{PROSE}{nested}</article>")
    assert found.endswith("  • Grain\n    • Rye\n    • Oats\n      1. white\n      2. black")


def test_an_item_without_text_has_no_bullet_and_one_with_paragraphs_has_one() -> None:
    items = "<li></li><li><img src=x></li><li><p>First.</p><p>Second.</p></li><li>\n  <b>Bold</b> text\n</li>"
    assert text(f"{PROSE}<ul>{items}</ul>").endswith("  • First.\n\n    Second.\n\n  • Bold text")
    assert text(f"{PROSE}<ul><li><ul><li>Inner</li></ul></li></ul>").splitlines()[-1].strip() == "• Inner"


def test_attributes_by_which_the_engine_hides_a_list_still_hide_it() -> None:
    assert "Rye" not in text(f"<article>{PROSE}{LIST.replace('<ul', '<ul hidden')}</article>")
    assert "Rye" not in text(f"<article>{PROSE}{LIST.replace('<ul', '<ul style=display:none')}</article>")


@pytest.mark.parametrize(("markup", "labels"), NUMBERS)
def test_numbers_are_those_that_a_browser_shows(markup: str, labels: str) -> None:
    found = text(f"<article>{PROSE}{markup}</ol>{PROSE}</article>")
    items = [line.strip() for line in found.split("\n") if line.strip().endswith("x")]
    assert " ".join(item.removesuffix("x").strip() for item in items).strip() == labels


def test_numbers_of_a_list_in_a_list() -> None:
    nested = "<ol start=4><li>four<ol type=a><li>one<li>two</ol><li>five</ol>"
    assert text(f"<article>{PROSE}{nested}</article>").endswith("  4. four\n    a. one\n    b. two\n  5. five")


def test_the_characters_around_labels_leave_a_page_that_has_them_alone() -> None:
    assert "a\ufdd0b" in text(f"<article>{PROSE}<p>a\ufdd0b</p></article>")
