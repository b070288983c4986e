"""The engine `blocks`: lists, tables and terms that it keeps, text that it drops, and pages that are broken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from plinth import fingerprint
from plinth.corpus.documents import documents
from plinth.corpus.extract.content.engine import (
    FEATURES,
    MODEL,
    NO_VOTES,
    VERSION,
    BlockEngine,
    BlockModel,
    conditions,
    default_model,
    main_content,
    page_blocks,
    read_model,
)
from plinth.corpus.extract.content.risk import NAMES, TRAITS, WEIGHTS, inputs, risk_of
from plinth.corpus.extract.worker import LIBRARIES
from plinth.corpus.sources.parameters import Bucket, Documents
from plinth.errors import StageError
from tests.plinth.corpus.extract.kernel_steps import counted_steps
from tests.plinth.corpus.extract.test_lists import NUMBERS

FIRST = (
    "The keeper of the mill writes down every sack of grain that a farmer brings, and weighs it twice before the "
    "stones begin to turn."
)
SECOND = (
    "In the evening the books are read aloud in the inn. Everyone who has an account may ask for a correction, and "
    "most of them do so with a smile."
)
THIRD = (
    "When winter comes, the river freezes and the wheel stands still for weeks. The children skate past it, and the "
    "keeper repairs what the summer has broken."
)
#: A model that keeps everything: one leaf above any limit.
ALL = BlockModel(
    np.array([-1], np.int32), *[np.empty(0, np.int32)] * 2, np.empty(0, np.uint8), np.empty(0, np.float32),
    np.array([9.0], np.float32), 0.0, 0.0,
)  # fmt: skip


#: First features of groups, and of the kind of page after them.
GROUP, KINDS = 164, 25


@pytest.fixture(scope="module")
def extract() -> BlockEngine:
    return BlockEngine(default_model())


@pytest.fixture(scope="module")
def keep_all() -> BlockEngine:
    return BlockEngine(ALL)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], int]:
    return counted_steps(tmp_path_factory.mktemp("steps"), ALL)


def between(extract: BlockEngine, inside: str) -> str:
    """Text that the engine writes between two paragraphs of an article."""
    head, nav = "<head><title>T</title></head>", '<nav><a href="/">Home</a> <a href="/b">Blog</a></nav>'
    article = f"<article><p>{FIRST}</p>{inside}<p>{SECOND}</p><p>{THIRD}</p></article>"
    text = extract(f"<!doctype html><html>{head}<body>{nav}{article}<footer>Imprint</footer></body></html>")[0]
    before, found, after = text.partition(f"\n\n{SECOND}\n\n{THIRD}")
    assert before.startswith(FIRST), text
    assert (bool(found), after) == (True, "")
    return before.removeprefix(FIRST)


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("", ""),
        ("<ul><li>Rye from the north field<li>Barley</ul>", "\n\n  • Rye from the north field\n  • Barley"),
        ("<ol start=3><li>x<li>y</ol>", "\n\n  3. x\n  4. y"),
        (
            "<ul><li>Grain<ul><li><a href=a>Rye</a><li>Oats<ol type=a><li>white<li>black</ol></ul></ul>",
            "\n\n  • Grain\n    • Rye\n    • Oats\n      a. white\n      b. black",
        ),
        (
            "<ul><li><li><img src=x><li><p>First.<p>Second.<li>\n<b>Bold</b> text\n</ul>",
            "\n\n  • First.\n\n    Second.\n  • Bold text",
        ),
        ("<table><tr><th>Name<th>Value<tr><td>a<td>1<tr><td>b<td>2</table>", "\n\nName\tValue\na\t1\nb\t2"),
        ("<dl><dt>Rye<dd>A grain that keeps.</dl>", "\n\nRye\nA grain that keeps."),
        (
            "<dl><dt>mill(x)<dd><p>Grind a sack.</p><pre>if x:\n  mill(x)</pre><dt>y<dd>A sack.</dl>",
            "\n\nmill(x)\nGrind a sack.\n\nif x:\n  mill(x)\n\ny\nA sack.",
        ),
        (
            "<table><tr><td><th>2019<th>2020<tr><th>Rye<td><td>2<tr><th>Oats<td>3<td></table>",
            "\n\n\t2019\t2020\nRye\t\t2\nOats\t3",
        ),
        (
            "<ul><li>Run:<pre>if x:\n\n  y</pre><li><pre>a\n  b</pre></ul>",
            "\n\n  • Run:\n\n    if x:\n\n      y\n  • a\n      b",
        ),
        ("<ol start=10><li>Rye<br>and oats</ol>", "\n\n  10. Rye\n      and oats"),
        ("<pre>\n  if x:\n\n      y\n</pre>", "\n\n  if x:\n\n      y"),
        ("<script>let secret = '<p>secret</p>'</script><template><p>secret</template>", ""),
        ("<div hidden><p>secret</p></div><span style='display: none'>secret</span>", ""),
    ],
)
def test_what_stands_among_prose_is_written_as_a_reader_sees_it(
    extract: BlockEngine, inside: str, expected: str
) -> None:
    assert between(extract, inside) == expected


@pytest.mark.parametrize(("markup", "labels"), NUMBERS)
def test_numbers_are_those_that_a_browser_shows(extract: BlockEngine, markup: str, labels: str) -> None:
    items = [line.strip() for line in between(extract, f"{markup}</ol>").split("\n") if line.strip().endswith("x")]
    assert " ".join(item.removesuffix("x").strip() for item in items).strip() == labels


@pytest.mark.parametrize(
    ("html", "blocks"),
    [
        ("<p>one<p>two<div>three</div>four", ["one", "two", "three", "four"]),
        ("a<br>b<br><br>c", ["a\nb", "c"]),
        ("<b>a <i>b</b> c</i> d", ["a b c d"]),
        ("x &lt; y &amp;&nbsp;z", ["x < y & z"]),
        ("a < b and c <3 d", ["a < b and c <3 d"]),
        ("<!-- a > b --><p>c</p><!--", ["c"]),
        ("<p title='a > b'>c</p><p title=\"unclosed>d", ["c"]),
        ("</div></p>a</td></li>b", ["a", "b"]),
        ("<table><tr><td>a</td></tr></table></div><p>b", ["a", "b"]),
        ("<img hidden><input style='display:none'>a", ["a"]),
        ("<textarea>no</textarea><select><option>no</select><svg><text>no</text></svg>a", ["a"]),
        ("<svg><p>a", ["a"]),
        ("<my-card>a</my-card>b<unknown>c</unknown>", ["a", "bc"]),
        ("<h1>a</h2>b", ["a", "b"]),
        ("one</br>two", ["one\ntwo"]),
        ("<h2>a<a href='#a'>#</a></h2><h2>b <a href=#b>&para;</a></h2>c<a href=#c>\uf0c1</a> d", ["a", "b", "c d"]),
        ("a<a href=#a>1</a> <a href=b>#</a> C<a href='#c'>#<b>7</b></a>", ["a1 # C#7"]),
        ("<h2>a<a href='#sect'>#sect</a></h2><h2>b<a href='#c'>#d</a></h2>", ["a", "b#d"]),
        ("<h2>a<i class='x mw-editsection'><i>[</i><a href=/e>edit</a>]</i></h2>b", ["a", "b"]),
        ("<pre><a class=lineno href=#1>1</a>x\n<a class=lineno href=#2>2</a>y</pre>", ["x\ny"]),
        ("<!-- a --!>b<!--!>c-->d<!--> e", ["bd e"]),
        ("<div>a <span hidden><p>no<span>no</span></p></span> b</div>c", ["a", "b", "c"]),
        ("<div>a <b style='display:none'>no<hr>no</b>b", ["a", "b"]),
        ("<p>a <x-b>b</x-b>, <label>c</label> d<p><label>e</label>f", ["a b, c d", "e", "f"]),
        ("<my-app><p>a <x-b>b<p>c</my-app>d", ["a b", "c", "d"]),
        ("<my-app><p>a <x-b hidden>no<x-b>no</x-b></x-b> b</p>c</my-app>d", ["a b", "c", "d"]),
        ("<i style='display:block'>a <i>b</i> c</i>d<a style='display: block'>e", ["a b c\nd\ne"]),
        ("a&#13;\nb&#10;&#x9;c&#160;d<p>&#xA0;</p>e", ["a b c d", "e"]),
        ("<pre>a&#10;&#9;b&#160;c&#xd;</pre>", ["a\n\tb c"]),
        ("<p>x <ruby>漢<rt>kan</rt>字<rt>ji</ruby> y", ["x 漢字 y"]),
        (
            "<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp></ruby>y<p><ruby>漢<rp>（<rt>kan<rp>）</ruby>",
            ["漢y", "漢"],
        ),
        ("<div class='a d-flex'><b>a</b><b>b<i>c</i></b>d<img>e</div><p><b>a</b><b>b</b>", ["a bc de", "ab"]),
        ("<p style='display: flex'><a>a</a><a>b</a></p><b>a</b></b><b>c", ["a b", "ac"]),
    ],
)
def test_blocks_of_broken_pages(keep_all: BlockEngine, html: str, blocks: list[str]) -> None:
    assert [line.strip() for line in keep_all(html)[0].split("\n\n")] == blocks


def test_sentences_are_written_once_but_for_code_and_terms(keep_all: BlockEngine) -> None:
    text = keep_all(f"<p>{FIRST}</p><p>Yes.<p>{SECOND}<div>{FIRST}</div><p>Yes.")[0]
    assert text == f"{FIRST}\n\nYes.\n\n{SECOND}\n\nYes."
    for kept in (f"<pre>{FIRST}</pre>", f"<dl><dd>{FIRST}</dl>"):
        assert keep_all(2 * kept)[0].count(FIRST) == 2
    assert keep_all(f"<p>{FIRST}<p>{FIRST.upper()}")[0] == f"{FIRST}\n\n{FIRST.upper()}"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>The mill is closed on Monday.</p>", "The mill is closed on Monday."),
        ("<nav><a href=a>Home</a></nav><p>The mill is closed on Monday.</p>", "The mill is closed on Monday."),
        ("<p>Mill</p>", ""),
        ("<nav><a href=a>Home.</a> <a href=b>Mill and inn.</a></nav>", ""),
        (f"<footer>{'Imprint of the mill. ' * 40}</footer>", ""),
    ],
)
def test_the_only_sentence_of_a_page_is_kept(extract: BlockEngine, html: str, text: str) -> None:
    assert extract(html)[0] == text


def test_a_line_number_alone_is_no_block() -> None:
    html = np.frombuffer(b"<i class=lineno>1</i><p>a</p><i class=lineno>2</i>", np.uint8)
    features, places, text = np.empty((3, FEATURES), np.float32), np.empty((3, 2), np.int64), np.empty(99, np.uint8)
    assert page_blocks(html, features, places, text) == 1


#: A model that keeps blocks of more than 60 characters; shorter ones are one below the limit.
LONG_BLOCKS = BlockModel(
    np.array([0], np.int32), np.array([-1], np.int32), np.array([-2], np.int32), np.array([0], np.uint8),
    np.array([60.0], np.float32), np.array([-1.0, 9.0], np.float32), 0.0, 0.0,
)  # fmt: skip


def test_what_is_repeated_is_kept_as_a_whole() -> None:
    """Short posts of a forum, as the long ones at their place; not their buttons, nor sentences elsewhere."""
    extract = BlockEngine(LONG_BLOCKS)
    posts = [FIRST, SECOND, "Mine does not, sadly."]
    html = "".join(f"<div class='post-{n} odd'><div>{post}</div><b>Reply!</b></div>" for n, post in enumerate(posts))
    assert extract(f"{html}<div class=hint>Ask for a mill.</div>").text.split("\n\n") == posts
    two = "".join(f"<div class='post-{n} odd'><div>{post}</div></div>" for n, post in enumerate(posts[1:]))
    assert extract(two).text == SECOND


def test_a_heading_stays_with_the_text_that_follows_it() -> None:
    extract = BlockEngine(LONG_BLOCKS)
    assert extract(f"<h2>Mill</h2><p>{FIRST}</p><h2>Inn</h2>").text == f"Mill\n\n{FIRST}"
    assert extract(f"<h2>Mill</h2><h3>Inn</h3><p>{FIRST}</p>").text == f"Mill\n\nInn\n\n{FIRST}"
    assert extract(f"<h2>Mill</h2><div>Hints</div><p>{FIRST}</p>").text == FIRST
    assert extract(f"<h2><b><div>Mill</div></b></h2><p>{FIRST}</p>").text == f"Mill\n\n{FIRST}"
    terms = f"{ARTICLE}<dl><dt><a href=/m>Mill</a><dd>{FIRST}</dl>"
    assert extract(terms).text.endswith(f"\n\nMill\n{FIRST}")


def test_code_between_text_stays() -> None:
    code, away = "<pre>a mill</pre>", 4 * "<div>More</div>"
    extract = BlockEngine(SHORT_IS_CLUTTER)
    assert extract(f"<p>{FIRST}</p>{away}<i>{code}</i>{away}<p>{SECOND}</p>").text == f"{FIRST}\n\na mill\n\n{SECOND}"
    for page in (f"<p>{FIRST}</p>{away}{code}", f"{code}{away}<p>{FIRST}</p>"):
        assert extract(page).text == FIRST


def test_a_page_for_browsers_without_scripts_is_read(keep_all: BlockEngine) -> None:
    posts = f"<p>{FIRST}</p><p>{SECOND}</p>"
    filler = "<i></i>" * 120
    assert keep_all(f"<body><noscript>{posts}{filler}</noscript>x").text == f"{FIRST}\n\n{SECOND}\n\nx"
    assert keep_all(f"<body><noscript>{posts}</noscript>x").text == "x"  # a notice
    assert keep_all(f"<body><noscript><img>{filler * 2}</noscript>x").text == "x"


def features_of(html: str) -> npt.NDArray[np.float64]:
    """Features of a page's blocks from `GROUP` on, to three digits."""
    data = np.frombuffer(html.encode(), np.uint8)
    features, places = np.empty((99, FEATURES), np.float32), np.empty((99, 2), np.int64)
    count = page_blocks(data, features, places, np.empty(2 * data.size + 64, np.uint8))
    return features[:count, GROUP:].astype(np.float64).round(3)


def test_features_of_what_is_repeated() -> None:
    item = "<div class='post-{n} odd'><p>Rye, {n}.</p><div><a href=x>Reply</a></div></div>"
    rows = features_of("<p>Mill</p>" + "".join(item.format(n=n) for n in range(4)))
    count, chars, links, repeated = rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 7]
    assert count.tolist() == [1] + 4 * [4, 4]
    assert chars.tolist() == [4] + 4 * [7, 5]
    assert links.tolist() == [0] + 4 * [0, 1]
    assert repeated.tolist() == [0] + 4 * [0, 1]
    of_items = rows[:, 9:17].tolist()
    assert of_items[0] == [0] + 7 * [-1]
    assert of_items[1] == [4, 12, 2, round(5 / 12, 3), 0, round(48 / 53, 3), 0, 1]  # depth of the paragraph below it
    assert of_items[2] == [4, 12, 2, round(5 / 12, 3), 0, round(48 / 53, 3), 1, 1]


@pytest.mark.parametrize(
    ("html", "kinds"),
    [
        ('<meta name=generator content="Discourse 3.3">', [1, 0, 0, 0, 0]),
        ('<meta name=description content="Discourse">', [0, 0, 0, 0, 0]),
        ('<script type="application/ld+json">{"@type":"Article","a":{"@type": ["Product"]}}</script>', [0, 1, 1, 0, 0]),
        ('<script>{"@type":"Product"}</script>', [0, 0, 0, 0, 0]),
        ('<script type="application/ld+json">"@type" : "</script>', [0, 0, 0, 0, 0]),
        ("<div itemscope itemtype='https://schema.org/QAPage'>", [1, 0, 0, 0, 0]),
        ("<div itemtype=https://schema.org/ItemList></div>" * 9, [0, 0, 0, 5, 0]),
    ],
)  # fmt: skip
def test_what_a_page_says_that_it_is(html: str, kinds: list[int]) -> None:
    assert features_of(f"{html}<p>Mill")[0, KINDS : KINDS + 5].tolist() == kinds


def test_classes_of_the_body_tell_the_kind_of_page() -> None:
    of_body = [features_of(f"<html class=x><body class='{name}'><p>Mill")[0, KINDS + 5 : -1].tolist() for name in
               ("bbpress topic", "single-product", "page")]  # fmt: skip
    assert of_body == [[1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert features_of("<p>Mill</p><div class=comments>Yes, mill</div>")[:, -1].tolist() == 2 * [round(9 / 14, 3)]


#: An article of which the model is sure.
ARTICLE = f"<p>{FIRST} {SECOND}</p><p>{SECOND} {THIRD}</p><p>{THIRD} {FIRST} {SECOND}</p><p>{FIRST} {THIRD}</p>"


@pytest.mark.parametrize(
    ("repeated", "expected"),
    [
        ("<h3><a href=/{n}>Mill {n}</a></h3><p>{text}</p>", "Mill {n}\n\n{text}"),
        ("<div class=q><div>Who keeps mill {n}?</div></div><div class=a><p>{text}</p></div>",
         "Who keeps mill {n}?\n\n{text}"),
        ("<div class=story><p>{text}</p><div>Read more</div></div>", "{text}"),
        ("<p>{text}</p><ul><li>Share</li><li><a href=/m>Mail {n}</a></li><li><a href=/c>Copy {n}</a></li></ul>",
         "{text}"),
    ],
)  # fmt: skip
def test_names_and_questions_stay_with_their_text_and_controls_go(
    extract: BlockEngine, repeated: str, expected: str
) -> None:
    texts = list(enumerate((FIRST, SECOND, THIRD)))
    page = ARTICLE + "".join(repeated.format(n=n, text=text) for n, text in texts)
    content = extract(f"<html><body><article>{page}</article></body></html>")
    assert content.text.endswith("\n\n".join(expected.format(n=n, text=text) for n, text in texts))
    assert content.traits[0] < 0.1


@pytest.mark.parametrize(
    "tail",
    [
        "<h2>Recipes</h2><div class=share><a href=/x>Tweet</a></div>",
        "<span>Keeper</span>",
        "<p>Learn more about each of the old mills:</p><div class=share><a href=/x>Tweet</a></div>",
        f"<h2>Next step</h2><p>Ready to bake? Contact us today.</p><p>{FIRST} Sign up for our newsletter.</p>",
        "<h2>Ada Keeper</h2><p>Ada is a journalist who writes about mills.</p><p>Her work is read.</p>",
    ],
)
def test_what_a_dropped_text_leaves_at_the_end_is_dropped(extract: BlockEngine, tail: str) -> None:
    assert extract(f"<html><body><article>{ARTICLE}{tail}</article></body></html>").text.endswith(THIRD)


#: A model that is sure of all text, but not so sure that the rules of form do not apply.
LIKELY = ALL._replace(leaf=np.array([2.0], np.float32))


@pytest.mark.parametrize(
    "pointer",
    [
        "Related article: <a href=/x>The story of the mill</a>",
        "<b>Read more:</b> <a href=/x>Every mill</a>",
        "&gt;&gt; <a href=/x>Must read: Every mill</a>",
        "👉 <a href=/x>Read our full review of the mill</a>",
        "(<a href=/x>The mill grinds again.</a>)",
        "Also read:<p><a href=/x>The story of the mill</a><p><a href=/y>Another mill</a>",
    ],
)
def test_lines_that_point_to_other_pages_are_dropped_from_an_article(pointer: str) -> None:
    page = f"{ARTICLE}<p>{pointer}</p><p>{FIRST} {SECOND}</p>"
    assert BlockEngine(LIKELY)(page).text == BlockEngine(LIKELY)(page.replace(f"<p>{pointer}</p>", "")).text
    assert "mill" in BlockEngine(LIKELY)(f"<p>{pointer}</p>").text.lower()  # all that the page has
    own = page.replace("href=/x", "href=#x")
    assert BlockEngine(LIKELY)(own).text != BlockEngine(LIKELY)(page).text  # a section of this page


@pytest.mark.parametrize(
    "line",
    ["Also read: the mill", "<a href=/x>(The mill)</a>", "Get started: <p>Every mill", "Also: <a href=/x>A mill</a>",
     f"Must read: <a href=/x>mill</a> {FIRST}", "&gt;&gt; <a href=/x>Reading our mill</a>"],
)  # fmt: skip
def test_lines_that_do_not_point_away_stay(line: str) -> None:
    text = BlockEngine(LIKELY)(f"{ARTICLE}<p>{line}</p><p>{FIRST} {SECOND}</p>").text
    assert "mill" in text.removeprefix(BlockEngine(LIKELY)(ARTICLE).text).removesuffix(f"{FIRST} {SECOND}")


#: A model that is sure of sentences, drops labels, and keeps what has a heading without being sure of it.
ISLANDS = BlockModel(
    np.array([0], np.int32), np.array([1, ~0], np.int32), np.array([~2, ~1], np.int32), np.array([0, 0], np.uint8),
    np.array([150.0, 40.0], np.float32), np.array([-3.0, 1.0, 4.0], np.float32), 0.0, 0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("", "<div>Mill</div>{text}", ""),
        ("", "{text}", "after"),
        ("", "<div>Mill</div>" + 12 * "{text}", "after"),
        ("{text}" + 9 * "<div>Mill</div>", "", "before"),
        ("{text}" + 10 * "<div>Mill</div>", "", ""),
        ("<h1>{text}</h1>" + 10 * "<div>Mill</div>", "", "before"),
    ],
)
def test_text_away_from_an_article_is_dropped_unless_it_is_much(before: str, after: str, kept: str) -> None:
    text = "<div>The keeper repairs what the summer has broken, mills and wheels.</div>"
    before = before.replace("<h1>{text}</h1>", text.replace("div", "h1"))
    found = BlockEngine(ISLANDS)(before.format(text=text) + ARTICLE + after.format(text=text)).text
    alone = BlockEngine(ISLANDS)(ARTICLE).text
    assert alone in found
    assert (found == alone) is (not kept)
    assert not kept or (found.endswith(alone) if kept == "before" else found.startswith(alone))


def test_doubt_is_at_least_the_share_of_text_that_is_not_sure() -> None:
    leaves = np.array([1.3, 9.0], np.float32)  # probabilities of 0.79 and 1
    model = ISLANDS._replace(left=np.array([~0], np.int32), right=np.array([~1], np.int32), leaf=leaves,
                             feature=np.array([0], np.uint8), threshold=np.array([150.0], np.float32))  # fmt: skip
    page = f"<p>{FIRST} {SECOND}</p><p>{THIRD[:100]}</p>"
    shares = [len(text) for text in (f"{FIRST} {SECOND}", THIRD[:100].strip())]
    assert BlockEngine(model)(page).unsure == pytest.approx(shares[1] / sum(shares), rel=0.05)
    assert BlockEngine(model)(f"<p>{FIRST} {SECOND}</p>").unsure < 0.01


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("<p>The end</p>", ""),
        ("<table><tr><td><p>Total</p><td><p>42</p></table>", "Total\t42"),
        ("<dl><dt>Rye<dd><p>Grain</p></dl>", "Rye\nGrain"),
        ("<p>ผู้ดูแลโรงสีจดกระสอบข้าวทุกใบที่ชาวนานำมา</p>", "ผู้ดูแลโรงสีจดกระสอบข้าวทุกใบที่ชาวนานำมา"),
    ],
)
def test_cells_terms_and_sentences_without_spaces_stay_at_the_end(tail: str, expected: str) -> None:
    text = BlockEngine(LIKELY)(f"<article>{ARTICLE}{tail}</article>").text
    assert text.removeprefix(BlockEngine(LIKELY)(ARTICLE).text).strip() == expected


def test_items_of_a_long_list_are_no_controls() -> None:
    names = [*(f"The mill of the miller {n} and of his daughters, who keep the books" for n in range(40)), "Twitter"]
    items = "".join(f"<li>{name}" for name in names)
    assert BlockEngine(LIKELY)(f"<ul>{items}</ul><p>{FIRST}</p>").text.count("•") == len(names)
    assert "Twitter" not in BlockEngine(LIKELY)(f"<p>{FIRST}</p><div>Twitter</div><p>{SECOND}</p>").text


#: A model for which text of fewer than 40 characters is clutter.
SHORT_IS_CLUTTER = ALL._replace(
    first=np.array([0], np.int32), left=np.array([~0], np.int32), right=np.array([~1], np.int32),
    feature=np.array([0], np.uint8), threshold=np.array([40.0], np.float32), leaf=np.array([-3.0, 2.0], np.float32),
)  # fmt: skip


@pytest.mark.parametrize("question", ["Who writes it?", "誰が書きますか？", "من يكتب الكتب؟"])
def test_questions_above_answers_stay_in_any_script(question: str) -> None:
    page = "".join(f"<div>{question}</div><p>{text}</p>" for text in (FIRST, SECOND, THIRD))
    assert BlockEngine(SHORT_IS_CLUTTER)(page).text.count(question) == 3
    assert question not in BlockEngine(SHORT_IS_CLUTTER)(page.replace("<p>", "<div>").replace(question, "x", 2)).text


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("<h3><a href=/{x}>Mill {x}</a></h3><div><div>Price</div></div>", True),
        ("<h3><div>Mill {x}</div></h3><div><div>Price</div></div>", True),
        ("<div><div>Mill {x}</div></div>", True),
        ("<h3><a href=/{x}>Mill</a></h3><div><div>Price</div></div>", False),
        ("<h3><a href=/{x}>Related mill {x}</a></h3><div><div>Price</div></div>", False),
        ("<div>Related</div><h3><a href=/{x}>Mill {x}</a></h3><div><div>Price</div></div>", False),
        ("<figure><h3>Mill {x}</h3></figure><div><div>Price</div></div>", False),
        ("<div><div><a href=/{x}>Mill {x}</a></div></div>", False),
        ("<div><div>{x}: 19. 8. 2019</div></div>", False),
    ],
)
def test_names_above_texts_of_their_own_stay(name: str, kept: bool) -> None:
    entries = [f"{name.format(x=x)}<p>{text}</p>" for x, text in zip("ABC", (FIRST, SECOND, THIRD), strict=True)]
    text = BlockEngine(LONG_BLOCKS)(f"<article>{ARTICLE}{''.join(entries)}</article>").text
    assert [line for line in text.split("\n\n")[4:] if len(line) < 60] == kept * ["Mill A", "Mill B", "Mill C"]
    for fewer in (entries[:2], [*entries, *(name.format(x=x) for x in "DEF")]):
        text = BlockEngine(LONG_BLOCKS)(f"<article>{ARTICLE}{''.join(fewer)}</article>").text
        assert not any(len(line) < 60 for line in text.split("\n\n"))


def test_a_name_above_no_sentence_of_its_own_goes() -> None:
    names = [f"<h3><a href=/{x}>Mill {x}</a></h3><div><div>Price</div></div>" for x in "ABCDEFGHIJKL"]
    page = "".join(f"{name}<p>{n} {FIRST}</p>" for n, name in enumerate(names[:-1]))
    text = BlockEngine(LONG_BLOCKS)(f"<article>{ARTICLE}{page}{names[-1]}<p>{FIRST[:80]}</p></article>").text
    assert [line[-1] for line in text.split("\n\n") if len(line) < 60] == list("ABCDEFGHIJK")


def test_questions_without_answers_are_a_menu() -> None:
    page = f"<ul><li>Who writes{{0}}<li>Who weighs{{0}}<li>Who owns{{0}}</ul><p>{FIRST}</p>"
    assert BlockEngine(LONG_BLOCKS)(page.format("?")).text == FIRST
    assert BlockEngine(LONG_BLOCKS)(page.format(".")).text.count("Who") == 3


def test_the_first_post_of_a_thread_stays() -> None:
    extract = BlockEngine(LONG_BLOCKS._replace(threshold=np.array([150.0], np.float32)))
    page = f"<body class={{}}><h1>Mills</h1><div><div>May</div></div><div><div><div>{FIRST}</div></div></div>{ARTICLE}"
    assert FIRST in extract(page.format("bbpress")).text.split("\n\n")
    assert FIRST not in extract(page.format("page")).text.split("\n\n")
    later = extract(page.format("bbpress").replace("<div>May", f"<p>{SECOND} {FIRST}</p><div>May")).text
    assert FIRST not in later.split("\n\n")


def test_questions_and_answers_away_from_an_article_stay() -> None:
    texts = [FIRST.replace("mill", name) for name in ("inn", "barn", "farm")]
    pairs = "".join(f"<div class=q>{n}. What is it?</div><div class=a>{text}</div>" for n, text in enumerate(texts))
    before, extract = f"{ARTICLE}{12 * '<div>Mill</div>'}", BlockEngine(ISLANDS)
    alone = extract(before).text
    found = extract(f"{before}<h2>FAQ</h2>{pairs}<div class=a>{SECOND}</div>").text.removeprefix(alone)
    assert found.split("\n\n")[1:] == ["FAQ", *(x for n, text in enumerate(texts) for x in (f"{n}. What is it?", text))]
    for other in (pairs.replace("it?", "it.", 1), pairs.replace("turn.", "turn?")):
        assert extract(before + other).text == alone


@pytest.mark.parametrize(
    ("above", "items", "kept"),
    [
        (SECOND, "<li><a href=/x>{x}</a>", True),
        (SECOND, "<li><a href=#x>{x}</a>", False),
        (f"Related: {SECOND}", "<li><a href=/x>{x}</a>", False),
        (SECOND, "<li><a href=/x>Also read {x}</a>", False),
        (f"{SECOND}<div><div>More</div></div>", "<li><a href=/x>{x}</a>", False),
    ],
)
def test_a_list_of_links_between_text_stays(above: str, items: str, kept: bool) -> None:
    found = f"<ul>{''.join(items.format(x=x) for x in ('Rye', 'Oats', 'Barley'))}</ul>"
    page = f"<article>{ARTICLE}<p>{above}</p>{found}<p>{FIRST}</p></article>"
    assert ("Oats" in BlockEngine(LONG_BLOCKS)(page).text) is kept
    for fewer in (page.replace("<li><a href=/x>Rye</a>", ""), page.replace(f"<p>{FIRST}</p></article>", "")):
        assert "Oats" not in BlockEngine(LONG_BLOCKS)(fewer).text


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ("<div>3 sacks of rye</div><div>Oats</div><div>Salt</div>", True),
        ("<div>3 sacks of rye</div><div>Oats</div>", False),
        ("<div><a href=/x>Rye</a></div><div><a href=/y>Oats</a></div><div><a href=/z>Salt</a></div>", False),
        ("<div>Rye</div><b>x</b><p>Oats<div>Salt</div>", False),
        ("<div>Share rye</div><div>Follow Oats</div><div>Sign up</div>", False),
    ],
)
def test_short_lines_between_paragraphs_stay(lines: str, kept: bool) -> None:
    likely = LONG_BLOCKS._replace(leaf=np.array([-1.5, 2.0], np.float32))
    page = f"<article>{ARTICLE}{lines}<p>{FIRST}</p></article>"
    assert ("Oats" in BlockEngine(likely)(page).text) is kept
    votes = np.array([0.0] * 4 + [-6.0] * (len(lines.split("<div>")) - 1) + [0.0], np.float32)
    if kept:
        assert "Oats" in BlockEngine(likely)(page, votes).text
        assert "Oats" not in BlockEngine(likely)(page.replace(f"<p>{FIRST}</p></article>", "")).text


RECIPE = '<script type="application/ld+json">{"@type": "Recipe"}</script>'


@pytest.mark.parametrize(
    ("page", "kept"),
    [
        (f"{RECIPE}PAGE", True),
        ("<div itemtype=https://schema.org/Recipe>PAGE</div>", True),
        ("PAGE", False),
    ],
)
def test_ingredients_and_steps_of_a_recipe_stay(page: str, kept: bool) -> None:
    card = (
        "<div class=card-ingredients><h4>Bread</h4><button>2x</button><ul><li>Rye<li><a href=/x>Shop</a></ul></div>"
        "<div><div itemprop=recipeInstructions><p>Grind.</div><div><p>Rate it.</div></div>"
    )
    text = BlockEngine(LONG_BLOCKS)(page.replace("PAGE", f"<article>{ARTICLE}</article>{card}")).text
    assert [one for one in ("Bread", "• Rye", "Grind.") if one in text] == kept * ["Bread", "• Rye", "Grind."]
    assert not any(one in text for one in ("2x", "Shop", "Rate"))


CELLS = "<tr><td>Rye<td>12<tr><td>Oats<td>7"


@pytest.mark.parametrize(
    ("inside", "kept"),
    [
        (f"<table>{CELLS}</table>", True),
        (f"<div>More</div><div><table>{CELLS}</table></div><div>More</div>", True),
        ("<table><tr><td>Rye<td>12</table>", False),
        (f"<table>{CELLS.replace('Oats', '<a href=/x>Oats and barley</a>')}</table>", False),
        (f"<table>{CELLS}<tr><td><p>{12 * THIRD}</p></table>", False),
        (f"{3 * '<div>More</div>'}<table>{CELLS}</table>", False),
    ],
)
def test_a_table_between_text_stays(inside: str, kept: bool) -> None:
    text = BlockEngine(SHORT_IS_CLUTTER)(f"<article>{ARTICLE}{inside}<p>{FIRST}</p></article>").text
    assert ("Rye\t12\nOats\t7" in text) is kept
    assert "Oats" not in BlockEngine(SHORT_IS_CLUTTER)(f"<article>{ARTICLE}{inside}</article>").text


def test_a_table_of_several_rows_below_text_stays() -> None:
    page = f"<article>{ARTICLE}<table>{3 * CELLS}</table></article>"
    unlikely = SHORT_IS_CLUTTER._replace(leaf=np.array([-4.0, 2.0], np.float32))
    assert BlockEngine(SHORT_IS_CLUTTER)(page).text.endswith("Rye\t12\nOats\t7")
    assert "Oats" not in BlockEngine(unlikely)(page).text


def test_links_to_prices_stay_out_of_tables() -> None:
    table = f"<table>{CELLS}<tr><td>Barley of the north field<td>9<td><a href=/x>Check price</a></table>"
    text = BlockEngine(SHORT_IS_CLUTTER)(f"<article>{ARTICLE}{table}<p>{FIRST}</p></article>").text
    assert "Rye\t12\nOats\t7\nBarley of the north field\t9\n\n" in text


@pytest.mark.parametrize(
    ("inside", "kept"),
    [
        ("<div>a = b</div>", True),
        ("<div>⟨a, b⟩</div><div>for any a = b</div>", True),
        ("<div>a b</div>", False),
        ("<div><a href=/x>a = b</a></div>", False),
        ("<div>a = b</div>" + 3 * "<div>More</div>", False),
    ],
)
def test_a_formula_between_text_stays_with_what_is_said_of_it(inside: str, kept: bool) -> None:
    inside = f"<div><div>{inside}</div></div>"  # not a name next to text
    text = BlockEngine(SHORT_IS_CLUTTER)(f"<article>{ARTICLE}{inside}<p>{FIRST}</p></article>").text
    assert ("a = b" in text or "a b" in text) is kept
    assert "a = b" not in BlockEngine(SHORT_IS_CLUTTER)(f"<article>{ARTICLE}{inside}</article>").text


@pytest.mark.parametrize(
    ("label", "between", "count"),
    [
        ("<div>Article content</div>", "", 0),
        ("<div>Article content</div>", f"<p>{THIRD}</p>", 3),
        ("<div>What the article has</div>", "", 3),
        ("<ul><li>Article content</ul>", "", 3),
        ("<dl><dt>Article content</dl>", "", 3),
        ("<div>article水車小屋の番人は農夫が持ってくる穀物の袋をすべて帳面に書き留める</div>", "", 3),
    ],
)
def test_labels_that_label_nothing_are_dropped(label: str, between: str, count: int) -> None:
    page = f"<article>{label}{ARTICLE}{label}{between}{label}<p>{SECOND} {FIRST}</p></article>"
    text = BlockEngine(LIKELY)(page).text
    assert text.count("rticle") == count
    assert text.endswith(FIRST)


@pytest.mark.parametrize(
    ("below", "kept"),
    [
        ("<h3>2 Comments</h3><ol class=comments><li>{}</ol>", False),
        ("<h2 id=comments>Replies to “The mill”</h2><div><p>{}</p></div>", False),
        ("<h2>Comments</h2><h3>Ann</h3><div class=comment-body>{}</div>", False),
        ("<h2>Comments</h2><div class=comment>A comment.</div><h2>Notes</h2><p>{}</p>", True),
        ("<h2>Comments</h2><p>{}</p>", True),
        ("<h2>Commentary</h2><p class=comment>{}</p>", True),
    ],
)
def test_comments_below_an_article_are_dropped(keep_all: BlockEngine, below: str, kept: bool) -> None:
    text = "I knew the keeper when he was young, and he never weighed a sack twice."
    page = f"<article>{ARTICLE}{SECOND}</article>{below.format(text)}"
    assert (text in keep_all(page).text) == kept
    assert text in keep_all(f"<div class=has-comments>{page}</div>").text  # the article is there, too
    assert keep_all(f"<html><body class=bbpress>{page}").text.endswith(text)
    assert text in keep_all(f"<p>{FIRST}</p>{below.format(text)}").text


@pytest.mark.parametrize(
    ("below", "left"),
    [
        ("<p>This entry was posted on May 16 by Ann. You can skip to the end, and leave a response there.", ""),
        ("<p>Keep reading<ul><li>Older: Flour<li>Newer: Bread</ul>", ""),
        ("<div>Filed under mills</div><div>Side notes</div>", ""),
        ("<p>Comments are closed.", ""),
        (f"<p>Posted in mills<p>{THIRD}", f"Posted in mills\n\n{THIRD}"),
        ("<p>It was posted in haste.", "It was posted in haste."),
        ("<p>This post was updated in May.", "This post was updated in May."),
        ("<pre>Tags: mills</pre>", "Tags: mills"),
    ],
)
def test_what_says_where_a_post_was_filed_is_dropped(keep_all: BlockEngine, below: str, left: str) -> None:
    page = f"<article><p>{FIRST}</p><p>{SECOND}</p></article>"
    assert keep_all(page + below).text == "\n\n".join(filter(None, (FIRST, SECOND, left)))


def test_all_that_is_below_a_whole_post_is_dropped(keep_all: BlockEngine) -> None:
    below = f"<p>This entry was posted on May 16.</p><h2>Side notes</h2><p>{THIRD}</p>"
    assert THIRD not in keep_all(f"<h1>Mills</h1><p>{FIRST} {FIRST}</p><p>{SECOND} {SECOND}</p>{below}").text
    assert THIRD in keep_all(f"<h1>Mills</h1><p>{FIRST}</p>{below}").text


def test_what_links_tell_screen_readers_is_no_text(keep_all: BlockEngine) -> None:
    assert keep_all(f"<p>{FIRST} <a href=/>Mills (opens in a new tab)</a> grind.").text == f"{FIRST} Mills grind."


CALL = "Sign up for the newsletter."
OURS = "We grind, and you bake with our flour: ask us."
PLUG = "Acme Mills grind for you."
SITE = '<meta property="og:site_name" content="Acme-Mills">'


@pytest.mark.parametrize(
    ("html", "traits"),
    [
        (ARTICLE, (0, 0, 0, 0)),
        (f"{ARTICLE}<p>{CALL} {SECOND} {THIRD}</p>", (0, 0.2, 0, 0)),
        (f"<p>{CALL}</p>{ARTICLE}", (0, 0, 0, 0)),
        (f"{ARTICLE}<h2>About</h2><p>{OURS} {OURS} {OURS}</p>", (0, 0, 0, 9000 / 350 / 25)),
        (f"{ARTICLE}<h2>About</h2><p>{OURS}</p><p>{OURS}</p>{SECOND}{FIRST}", (0, 0, 0, 6000 / 568 / 25)),
        (f"{ARTICLE}<p>{PLUG}</p>", (0, 0, 0, 0)),
        (f"{SITE}{ARTICLE}<p>{PLUG}</p>", (0, 0.2, 0.1, 0)),
        (f"{SITE}{ARTICLE}<p>The house of Acme Mills is old.</p>", (0, 0, 0, 0)),
        (f"{SITE}<p>{PLUG} {PLUG}</p><p>{CALL}</p>{ARTICLE}", (0, 0, 2**0.5 / 10, 0)),
        (f"{SITE}<p>{PLUG}</p>{ARTICLE}<h2>More</h2><p>{SECOND} {THIRD} {CALL}</p>", (0, 0.2, 0.1, 0)),
    ],
)
def test_traits_of_a_text(keep_all: BlockEngine, html: str, traits: tuple[float, ...]) -> None:
    assert keep_all(html.replace(ARTICLE, 3 * ARTICLE)).traits == pytest.approx(traits, abs=0.05)


@pytest.mark.parametrize(
    ("head", "named"),
    [
        (SITE, True),
        (SITE.replace("site_name", "title"), False),
        ('<link rel="canonical" href="https://www.acmemills.co.uk/flour">', True),
        ('<meta property="og:url" content="https://blog.flour.example/acmemills">', False),
        ("<title>Flour - Acme Mills</title><link rel=canonical href=//mills.example>", True),
        ("<title>Flour &#8211; Acme Mills</title><link rel=canonical href=//shop.mills.example>", True),
        ("<title>Flour — Acme Mills</title><link rel=canonical href=//shop.theacmemills.example>", True),
        ("<title>Flour - Acme Mills</title><link rel=canonical href=//flour.example>", False),
        ("<title>Acme Mills</title><link rel=canonical href=//acmemillshop.example>", False),
        (f"<title>{300 * ' - '}</title>{SITE.replace('Acme', 300 * 'Acme')}", False),
    ],
)
def test_a_site_is_known_by_the_names_that_its_pages_state(keep_all: BlockEngine, head: str, named: bool) -> None:
    found = keep_all(f"<head>{head}</head>{ARTICLE}<p>{PLUG}</p>")
    assert (found.traits[TRAITS.index("speech")] > 0) == named


def test_risk_rises_with_doubt_and_every_trait() -> None:
    weights = json.loads(WEIGHTS.read_text())
    assert list(weights) == list(NAMES)
    assert inputs(0.2, (0.5, 0, 0, 1)) == [1, 0.2, 0.5, 0, 0, 1]
    assert inputs(0.7, (0, 0, 0, 0))[1] == inputs(0.5, (0, 0, 0, 0))[1]
    least = risk_of(0, [0] * len(TRAITS))
    assert least == pytest.approx(1 / (1 + np.exp(-weights["bias"])))
    for trait in range(len(TRAITS)):
        assert risk_of(0, [float(trait == one) for one in range(len(TRAITS))]) > least
    assert least < risk_of(0.05, [0] * len(TRAITS)) < risk_of(0.2, [0] * len(TRAITS)) < 0.6


def test_a_model_whose_leaves_are_no_numbers_is_unsure() -> None:
    assert BlockEngine(ALL._replace(leaf=np.array([np.nan], np.float32)))(ARTICLE).unsure == 1.0


def test_teasers_are_a_share_of_the_text(extract: BlockEngine) -> None:
    items = "".join(
        f"<div class=item><h3><a href={{to}}>The story of the mill in the year {n}</a></h3><p>{text}</p></div>"
        for n, text in enumerate((FIRST, SECOND, THIRD), 1900)
    )
    assert extract(items.format(to="/x")).traits[0] == 1
    assert extract(items.format(to="#x")).traits[0] == 0  # sections of this page
    assert extract(f"<html><body class=bbpress>{items.format(to='/x')}").traits[0] == 0
    assert extract(ARTICLE).traits[0] == 0


def test_votes_add_to_the_scores(extract: BlockEngine) -> None:
    html = f"<p>{FIRST}</p><p>{SECOND}</p>"
    assert extract(html).text == f"{FIRST}\n\n{SECOND}"
    assert extract(html, np.array([0, -20], np.float32)).text == FIRST
    assert extract(html, np.array([-20], np.float32)).text == extract(html).text  # votes of another page


def test_the_title_is_the_first_and_resolved(extract: BlockEngine) -> None:
    assert extract("<title> A &amp;\n B </title><svg><title>no</title></svg>")[1] == "A & B"
    assert extract("<p>none</p>")[1] is None


@pytest.mark.parametrize("html", ["<ul><li>x" * 400, "<table><tr>" + "<td></td>" * 300 + "x<td>y</td>" * 300])
def test_a_page_is_written_into_any_room(html: str) -> None:
    data, model = np.frombuffer(html.encode(), np.uint8), conditions(ALL)
    room = -main_content(data, *model, NO_VOTES, np.empty(len(TRAITS)), np.empty(0, np.uint8))[0]
    assert room > 0
    assert main_content(data, *model, NO_VOTES, np.empty(0), np.empty(room - 1, np.uint8))[0] == -room
    out = np.empty(2 * room, np.uint8)
    out[room:] = 1
    size = main_content(data, *model, NO_VOTES, np.empty(len(TRAITS)), out[:room])[0]
    assert size <= room
    assert out[room:].all()
    assert out[:size].tobytes().decode().rstrip() == BlockEngine(ALL)(html)[0].rstrip()


@pytest.mark.parametrize(
    "repeated",
    ["<p>a", "<table><tr>x<td>y", "<pre>a\n", "<p>a <x-b>", "<svg>", "<ul><li>a", "<!--", "<p class='x ",
     *(pytest.param(one, marks=pytest.mark.exhaustive) for one in
       ("<div>", "<td><td>a", "<tr><td><td>a", "<i style=display:block>a", "<template><svg>", "<a href=x>",
        "<table><tr><td>a", "</div>", "<span hidden>", "<pre>a", "<i class=lineno>1", "<ruby>a<rt>b",
        "<p class=flex><b>a<b>b", "<noscript><p>a"))],
)  # fmt: skip
def test_work_is_linear_in_the_page(steps: Callable[[str], int], repeated: str) -> None:
    """A page of eight times the size takes about eight times the steps; a loop over what came before, 64 times."""
    small, large = (steps(repeated * count + "</noscript>") for count in (2_000, 16_000))
    assert small > 2_000
    assert large < 1.2 * 8 * small


def test_features_are_exact_and_the_same_every_time() -> None:
    html = np.frombuffer(f"<p>{FIRST}</p><p><a href=x>Read more</a></p>".encode(), np.uint8)
    places, text = np.empty((2, 2), np.int64), np.empty(html.size * 2, np.uint8)
    rows = np.empty((2, 2, FEATURES), np.float32)
    for features in rows:
        assert page_blocks(html, features, places, text) == 2
    assert (rows[0] == rows[1]).all()
    chars, link_share = rows[0][:, 0], rows[0][:, 3]
    assert chars.tolist() == [len(FIRST), len("Read more")]
    assert link_share.round(3).tolist() == [0.0, 1.0]
    assert page_blocks(html, rows[0][:1], places[:1], text) == -3


def forest(picks: np.random.Generator, sizes: list[int]) -> BlockModel:
    """Trees with these numbers of leaves, split at random, with few thresholds so that features equal them."""
    columns: dict[str, list[float]] = {name: [] for name in BlockModel._fields[:6]}

    def grow(leaves: int) -> int:
        if leaves == 1:
            columns["leaf"].append(picks.normal())
            return ~(len(columns["leaf"]) - 1)
        at, near = len(columns["feature"]), int(picks.integers(1, leaves))
        for name, value in (("feature", picks.integers(FEATURES)), ("threshold", picks.integers(4)), ("left", 0)):
            columns[name].append(value)
        columns["right"].append(0)
        columns["left"][at], columns["right"][at] = grow(near), grow(leaves - near)
        return at

    columns["first"] = [grow(size) for size in sizes]
    kinds = {"feature": np.uint8, "threshold": np.float32, "leaf": np.float32}
    return BlockModel(*(np.array(columns[n], kinds.get(n, np.int32)) for n in BlockModel._fields[:6]), 0.0, 0.0)


def test_conditions_lead_to_the_leaf_that_a_walk_down_the_tree_reaches() -> None:
    picks = np.random.default_rng(1)
    model = forest(picks, [64, 1, 2, 47, 1, 30])
    made = conditions(model)
    feature = np.repeat(np.arange(FEATURES), np.diff(made.starts))
    for row in picks.integers(0, 5, (50, FEATURES)).astype(np.float32):
        for tree, node in enumerate(model.first.tolist()):
            while node >= 0:
                left = row[model.feature[node]] <= model.threshold[node]
                node = int((model.left if left else model.right)[node])
            false = (made.tree == tree) & ~(row[feature] <= made.threshold)
            stays = int(np.bitwise_and.reduce(made.others[false], initial=np.uint64(2**64 - 1)))
            assert made.first[tree] + (stays & -stays).bit_length() - 1 == ~node


def test_the_kernel_keeps_the_blocks_that_a_walk_down_the_trees_keeps() -> None:
    lines = ["word " * (k % 7 + 1) + "a1B,"[: k % 4 + 1] * (k % 5) + f"end{k}" for k in range(21)]
    html = "".join(f"<div><div>{line}</div></div>" for line in lines)
    features, places = np.empty((21, FEATURES), np.float32), np.empty((21, 2), np.int64)
    data = np.frombuffer(html.encode(), np.uint8)
    assert page_blocks(data, features, places, np.empty(2 * data.size + 64, np.uint8)) == 21
    picks, scores = np.random.default_rng(3), list[float]()
    model = forest(picks, [64, 1, 2, 47, 30, 5])
    varied = picks.choice(np.flatnonzero(np.ptp(features, axis=0)), model.feature.size).astype(np.uint8)
    model = model._replace(feature=varied, threshold=features[picks.integers(0, 21, varied.size), varied])  # equal some
    for row in features:
        score = 0.0
        for node in model.first.tolist():
            while node >= 0:
                left = row[model.feature[node]] <= model.threshold[node]
                node = int((model.left if left else model.right)[node])
            score += float(model.leaf[~node])
        scores.append(float(np.float32(score)))
    assert len(set(scores)) > 5
    for limit in set(scores):
        text = BlockEngine(model._replace(article=limit, other=limit))(html).text
        kept = [line for line, score in zip(lines, scores, strict=True) if score >= limit]
        assert text.split("\n\n") == kept


def test_a_tree_of_more_leaves_than_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="a tree of the model has more than 64 leaves"):
        conditions(forest(np.random.default_rng(1), [5, 65]))


def test_a_model_of_another_version_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", version=np.int64(99))
    with pytest.raises(ValueError, match=rf"model\.npz is of version 99, expected {VERSION}"):
        read_model(tmp_path / "model.npz")


def test_the_model_is_part_of_the_identity_of_pages_and_workers_check_it() -> None:
    terms = {"train": True, "redistribute": True, "commercial": True}
    facts = {"path": "x", "licence": "MIT", "terms": terms, "domain": "d", "snapshot": "s"}
    params = Documents.model_validate({"extraction": "blocks"})
    buckets = {
        kind: Bucket.model_validate({"description": "d", "owner": "o", "sources": [facts | {"kind": kind}]})
        for kind in ("html", "jsonl")
    }
    found = {kind: documents.libraries(bucket, params) for kind, bucket in buckets.items()}
    for name, file in zip(LIBRARIES["blocks"], (MODEL, WEIGHTS), strict=True):
        assert found["html"][name] == hashlib.sha256(file.read_bytes()).hexdigest()
        assert name not in found["jsonl"]
    with pytest.raises(StageError, match="the libraries of this worker differ"):
        fingerprint.require_libraries("web/documents", {name: "another"})
