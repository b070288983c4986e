"""Formulas as text: what a reader sees, once, by both engines."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.extract.content.engine import with_formulas
from plinth.corpus.extract.readable import readable_formulas
from plinth.corpus.extract.worker import engine

ENGINES = ("blocks", "resiliparse", "trafilatura")
FILLER = "<p>This paragraph says enough to be kept as the main content of the page, and so does the one after it.</p>"


def extracted(name: str, inside: str) -> str:
    page = f"<html><body><main><article><h1>Title</h1>{FILLER}<p>It reads: {inside} to the end.</p>{FILLER}"
    text = engine(name)(page + "</article></main></body></html>").text
    (line,) = (line for line in text.splitlines() if line.startswith("It reads: "))
    return line.removeprefix("It reads: ").removesuffix(" to the end.")


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("10<sup>6</sup>", "10⁶"),
        ("10<SUP>-6</SUP>", "10⁻⁶"),
        ("x<sub>i</sub>", "xᵢ"),
        ("CO<sub>2</sub>", "CO₂"),
        ("<i>x</i><sup>2</sup>", "x²"),
        ("<i>x<sup>2</sup></i>", "x²"),  # three bytes, which resiliparse alone would drop
        ("<i>x</i><sub>i</sub><sup>2</sup>", "xᵢ²"),
        ("(a+b)<sup>n+1</sup>", "(a+b)ⁿ⁺¹"),
        ("e<sup>&minus;kt</sup>", "e^(−kt)"),
        ("V<sub>out,1</sub>", "V_(out,1)"),
        ("2<sup>2<sup>n</sup></sup>", "2^(2ⁿ)"),
        ("x<sup>a&lt;b</sup>", "x^(a<b)"),
        ("Brand<sup>TM</sup>", "Brand™"),
        ("the 1<sup>st</sup> of the XX<sup>e</sup> siècle", "the 1st of the XXe siècle"),
        ('so it was<sup><a href="#n1">[1]</a></sup>', "so it was[1]"),
        ('so it was<sup class="reference">1</sup>', "so it was1"),
        ("so <sup>in small print</sup>", "so in small print"),
        ("a<sub></sub>b", "ab"),
        ("a <sup>2</sup>", "a 2"),  # at nothing
    ],
)
def test_raised_and_lowered_text(html: str, expected: str) -> None:
    assert {extracted(name, html) for name in ENGINES} == {expected}


EULER = (
    "<semantics><mrow><msup><mi>e</mi><mrow><mi>i</mi><mi>&#x03C0;<!-- π --></mi></mrow></msup><mo>+</mo><mn>1</mn>"
    '<mo>=</mo><mn>0</mn></mrow><annotation encoding="application/x-tex">e^{i\\pi}+1=0</annotation></semantics>'
)
QUADRATIC = (
    "<mi>x</mi><mo>=</mo><mfrac><mrow><mo>−</mo><mi>b</mi><mo>±</mo><msqrt><msup><mi>b</mi><mn>2</mn></msup><mo>−</mo>"
    "<mn>4</mn><mi>a</mi><mi>c</mi></msqrt></mrow><mrow><mn>2</mn><mi>a</mi></mrow></mfrac>"
)


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (f"<math>{EULER}</math>", "e^(iπ)+1=0"),
        (f'<math alttext="a>b">{EULER}</math>', "e^(iπ)+1=0"),
        (  # Wikipedia: hidden MathML next to an image
            '<span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display: none;">'
            f'<math alttext="x">{EULER}</math></span><img src="x.svg" alt="e^{{i}}"></span>',
            "e^(iπ)+1=0",
        ),
        (  # KaTeX: MathML for readers' software, boxes for the eye
            '<span class="katex"><span class="katex-mathml"><math><semantics><msup><mi>x</mi><mn>2</mn></msup>'
            '<annotation encoding="application/x-tex">x^2</annotation></semantics></math></span>'
            '<span class="katex-html" aria-hidden="true"><span>x</span><span>2</span></span></span>',
            "x²",
        ),
        (f"<math>{QUADRATIC}</math>", "x=(−b±√(b²−4ac))/(2a)"),
        ("<math><mroot><mi>x</mi><mn>3</mn></mroot></math>", "³√(x)"),
        (
            "<math><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>0</mn></mrow><mi>n</mi></munderover>"
            "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></math>",
            "∑ᵢ₌₀ⁿxᵢ²",
        ),
        (
            "<math><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>0</mn></mtd></mtr>"
            "<mtr><mtd><mn>0</mn></mtd><mtd><mn>1</mn></mtd></mtr></mtable></math>",
            "[1, 0; 0, 1]",
        ),
        ("<math><mi>f</mi><mo>&#x2061;</mo><mo>(</mo><mi>x</mi><mo>)</mo><mo>&lt;</mo><mn>1</mn></math>", "f(x)<1"),
    ],
)
def test_mathml_is_shown_once(html: str, expected: str) -> None:
    assert {extracted(name, html) for name in ENGINES} == {expected}


def test_a_source_that_nobody_sees_is_not_shown() -> None:
    hidden = "<math><semantics><mi>x</mi><annotation-xml><p>Buy this</p></annotation-xml></semantics></math>"
    for name in ENGINES:
        assert extracted(name, f"so {hidden}") == "so x"


@pytest.mark.parametrize(
    "html", ["<b>né</b>", "<i>là</i>", "<em>o&ugrave;</em>", "<b>年</b>", "<b> € </b>", "<b>x²</b>"]
)
def test_short_texts_are_not_dropped(html: str) -> None:
    for name in ENGINES:
        assert len(extracted(name, f"so {html}, and").replace(" ", "")) > len("so,and")


HOSTILE = {
    "sup": "<sup" * 300_000,
    "open": "<sup>" * 200_000,
    "nested": "x<sup>" * 100_000 + "1" + "</sup>" * 100_000,
    "math": "<math " * 200_000,
    "quotes": '<math "' * 150_000,
    "deep": "<math>" + "<mrow>" * 100_000 + "</math>",
    "comments": "<math>" + "<!--" * 200_000 + "</math>",
    "name": "<math><" + "a:" * 300_000 + "</math>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_formulas_take_time_by_their_length(name: str) -> None:
    begun = time.process_time()
    readable_formulas(HOSTILE[name])
    assert time.process_time() - begun < 5


@given(
    st.lists(st.sampled_from(["<sup>", "</sup>", "<SUB>", "</SUB>", "<math>", "</math>", *"<>/supbmath \"'x2=-é"])).map(
        "".join
    )
)
def test_any_page_comes_through(html: str) -> None:
    assert with_formulas(html) == readable_formulas(html).encode()
    assert readable_formulas(html.replace("<", "")) == html.replace("<", "")
