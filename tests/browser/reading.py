"""Readability of a page in Chromium: contrast of its text, keyboard, width on a phone; faults as sentences.

Contrast is the formula of WCAG 2.2 (w3.org/TR/WCAG22, 1.4.3), of the colors that Chromium computes: a text's own,
over everything that is drawn below its center.
"""

from __future__ import annotations

from typing import Any

#: WCAG AA, of all text: none here is called large.
LEAST_CONTRAST = 4.5
#: Minimum contrast of a focus indicator (WCAG 1.4.11).
LEAST_OUTLINE = 3.0
PHONE = {"width": 390, "height": 844}
SCREEN = {"width": 1280, "height": 900}
#: Lines of a row on a phone beyond those that its text fills, and the characters of a line.
ROW_LINES, LINE_CHARACTERS = 6, 20
#: Pixels; smaller text is a smudge on a phone.
LEAST_TEXT_PX = 7.5

_COLOURS = """
const rgba = text => {
  const found = text.match(/^rgba?\\(([^)]+)\\)$/);
  if (!found) { throw new Error(`no colour that this test knows: ${text}`); }
  const parts = found[1].split(/[ ,/]+/).map(Number);
  return parts.length < 4 ? [...parts, 1] : parts;
};
const faded = (colour, opacity) => [...colour.slice(0, 3), colour[3] * opacity];
const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
const luminance = colour => {
  const [r, g, b] = colour.map(part => part / 255).map(p => p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const opacity = element => {
  let found = 1;
  for (let at = element; at; at = at.parentElement) { found *= Number(getComputedStyle(at).opacity); }
  return found;
};
const painted = element => {
  const style = getComputedStyle(element);
  if (!(element instanceof SVGElement) || element.tagName === "svg") { return rgba(style.backgroundColor); }
  if (!(element instanceof SVGGeometryElement) || style.fill === "none" || style.fill.startsWith("url")) {
    return [0, 0, 0, 0];
  }
  return faded(rgba(style.fill), Number(style.fillOpacity));
};
const canvas = () => matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
const ground = (element, x, y) => {
  let layers = document.elementsFromPoint(x, y);
  if (!layers.includes(element)) {  // scrolled out of its region
    layers = [];
    for (let at = element; at; at = at.parentElement) { layers.push(at); }
  }
  const below = layers.slice(layers.indexOf(element));
  return below.reduceRight((found, each) => over(faded(painted(each), opacity(each)), found), canvas());
};
"""

_TEXTS = (
    f"() => {{ {_COLOURS}"
    + """
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement, range = document.createRange();
    if (!/[\\p{L}\\p{N}]/u.test(node.data) || !element.checkVisibility({visibilityProperty: true})) { continue; }
    range.selectNodeContents(node);
    const box = range.getClientRects()[0];
    if (!box || !box.width || box.right < 0) { continue; }
    const style = getComputedStyle(element), drawn = element instanceof SVGElement;
    const colour = faded(rgba(drawn ? style.fill : style.color), opacity(element));
    const below = ground(element, box.left + box.width / 2, box.top + box.height / 2);
    found.push({text: node.data.trim().slice(0, 40), contrast: contrast(over(colour, below), below),
                pixels: drawn ? box.height / 1.17 : parseFloat(style.fontSize)});
  }
  return found;
}"""
)

_STOPS = """() => [...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]")]
  .filter(each => each.tabIndex >= 0 && !each.disabled && each.checkVisibility({visibilityProperty: true}))
  .filter(each => each.type !== "radio" || each.checked
                  || !document.querySelector(`input[type=radio][name="${each.name}"]:checked`))
  .map((each, at) => { each.dataset.stop = at; return (each.innerText || each.id || each.tagName).slice(0, 40); })"""

_FOCUS = (
    f"() => {{ {_COLOURS}"
    + """
  const element = document.activeElement;
  if (!element || element === document.body) { return null; }
  const style = getComputedStyle(element), box = element.getBoundingClientRect();
  const x = box.left + box.width / 2, below = ground(element.parentElement, x, box.top + box.height / 2);
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  return {
    stop: element.dataset.stop === undefined ? null : Number(element.dataset.stop),
    name: (element.innerText || element.id || element.tagName).slice(0, 40),
    ring: ring ? contrast(over(rgba(style.outlineColor), below), below) : 0,
    inSight: box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight,
  };
}"""
)

_WIDTH = """() => {
  const out = [...document.querySelectorAll("body *")].filter(each => {
    if (each.getBoundingClientRect().right <= innerWidth + 1) { return false; }
    for (let at = each.parentElement; at; at = at.parentElement) {
      if (getComputedStyle(at).overflowX !== "visible") { return false; }
    }
    return true;
  });
  const hidden = [...document.querySelectorAll("body *")].filter(each =>
    ["auto", "scroll"].includes(getComputedStyle(each).overflowX) && each.scrollWidth > each.clientWidth + 1
    && !each.hasAttribute("tabindex") && !each.querySelector("a[href], button, input, [tabindex]"));
  const words = each => each.innerText || each.getAttribute("class") || "";
  const named = each => `${each.tagName.toLowerCase()} ${words(each).slice(0, 40)}`;
  return {width: document.documentElement.scrollWidth, out: out.slice(0, 3).map(named), hidden: hidden.map(named)};
}"""


def faint(page: Any) -> list[str]:
    """Texts of too little contrast, with light and dark colors."""
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": SCREEN["width"], "height": SCREEN["height"]})
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": SCREEN["width"], "height": min(20_000, height)})
        texts = page.evaluate(_TEXTS)
        assert texts, "a page without text"
        found += [
            f"{scheme}: {one['text']!r} has a contrast of {one['contrast']:.2f}"
            for one in texts
            if one["contrast"] < LEAST_CONTRAST
        ]
    page.emulate_media(color_scheme="light")
    return found


def keyboard(page: Any) -> list[str]:
    """Links and controls that Tab does not reach in the order of the page, or whose focus cannot be seen."""
    page.set_viewport_size(SCREEN)
    stops, reached, found = page.evaluate(_STOPS), [], []
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(2 * len(stops) + 10):
        page.keyboard.press("Tab")
        at = page.evaluate(_FOCUS)
        if at is None or (reached and at["stop"] == reached[0]):
            break
        if at["stop"] is not None:  # else a region that Chromium itself lets be scrolled
            reached.append(at["stop"])
        if at["ring"] < LEAST_OUTLINE:
            found.append(f"the focus on {at['name']!r} has a contrast of {at['ring']:.2f}")
        if not at["inSight"]:
            found.append(f"{at['name']!r} has the focus out of sight")
    else:
        found.append("Tab does not come to an end")
    if reached != list(range(len(stops))):
        missed = [name for number, name in enumerate(stops) if number not in reached]
        found.append(f"Tab goes {reached}, past {missed}")
    return found


_ROWS = """() => [...document.querySelectorAll("tr, li, dt, dd, .fact, .tile")]
  .filter(each => each.checkVisibility({contentVisibilityAuto: true}) && !each.closest("details:not([open])"))
  .map(each => ({text: each.innerText.replace(/\\s+/g, " ").slice(0, 40), letters: each.innerText.length,
                 lines: each.getBoundingClientRect().height / 21, figure: Boolean(each.querySelector("svg"))}))"""

_LINKS = """() => [...document.querySelectorAll("a[href]")].map(each => each.getAttribute("href"))
  .filter(link => /^file:/i.test(link) || (link.startsWith("#") && !document.getElementById(link.slice(1))))"""


def squeezed(page: Any) -> list[str]:
    """Rows and facts that are a column of characters on a phone: more lines than their text fills at 20 a line."""
    page.set_viewport_size(PHONE)
    rows = (row for row in page.evaluate(_ROWS) if not row["figure"])
    tall = [row for row in rows if row["lines"] > ROW_LINES + row["letters"] / LINE_CHARACTERS]
    return [f"{row['text']!r} has {row['letters']} characters in {row['lines']:.0f} lines" for row in tall]


def lost(page: Any) -> list[str]:
    """Links to files, which a served page cannot open, and to no place of the page."""
    return [f"the link {link!r} leads nowhere" for link in page.evaluate(_LINKS)]


def phone(page: Any) -> list[str]:
    """Return elements that are wider than a phone, too small there, or scrollable by touch only."""
    page.set_viewport_size(PHONE)
    seen = page.evaluate(_WIDTH)
    found = [f"{name!r} is wider than the screen" for name in seen["out"]]
    if seen["width"] > PHONE["width"]:
        found.append(f"the page is {seen['width']} pixels wide")
    found += [f"{name!r} is scrolled, and no key reaches it" for name in seen["hidden"]]
    small = [one for one in page.evaluate(_TEXTS) if one["pixels"] < LEAST_TEXT_PX]
    if small:
        least = min(small, key=lambda one: one["pixels"])
        found.append(f"{len(small)} texts are small, as {least['text']!r} with {least['pixels']:.1f} pixels")
    return found


def faults(page: Any) -> list[str]:
    """Everything that is wrong with a page."""
    return [*faint(page), *keyboard(page), *phone(page), *squeezed(page), *lost(page)]
