"""Text of documents and addresses never commands a terminal, whichever way a command prints it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plinth_jobs.cli
from plinth.compute.progress import ProgressBars, ProgressLines
from plinth.text import escaped, visible
from plinth_jobs.cli import output, sample

#: A title, a cleared screen, a hyperlink, a reply that is typed, an 8-bit command, a reversed name, half a character.
HOSTILE = [
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[H",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x1bP$q\x1b\\",
    "\x9b31m",
    "https://a.example/\u202egpj.exe",
    "line\rover",
    "\b\b\b",
    "\u2028row",
    "\ud800",
    "\x00\x7f",
]
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
PRINTERS: dict[str, Callable[[str], object]] = {
    "say": output.say,
    "say markup": lambda text: output.say(f"[dim]{text}[/dim]"),
    "say plain": lambda text: output.say(f"  [bold]{output.plain_markup(text)}[/bold]"),
    "line": output.line,
    "heading": output.heading,
    "facts": lambda text: output.facts({text: text}),
    "table": lambda text: output.table([text, "b"], [[text, 1], [output.coloured(text, "red"), 2]], title=text),
    "json": lambda text: output.emit_json({text: [text]}),
}


@pytest.mark.parametrize("printer", PRINTERS)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_way_out_carries_commands(printer: str, hostile: str, capfd: pytest.CaptureFixture[str]) -> None:
    PRINTERS[printer](f"before {hostile} after")
    shown = capfd.readouterr().out
    assert not FORBIDDEN.search(shown)
    assert "before" in shown
    assert "after" in shown


@given(st.text())
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    shown = visible(text)
    assert not FORBIDDEN.search(shown)
    assert visible(shown) == shown
    assert (shown == text) == (not FORBIDDEN.search(text))
    assert json.loads(escaped(json.dumps(text, ensure_ascii=False))) == text


@pytest.mark.parametrize(
    "text",
    [
        "[link=http://evil.example]x[/link]",
        "[/dim]",
        "[@click=f]x",
        "\\[link=u]x",
        "\\\\[link=u]x",
        "[0, 1] [] [a]",
        ":bomb:",
    ],
)
def test_brackets_of_others_are_no_markup(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    output.say(output.plain_markup(text))
    assert capfd.readouterr().out == f"{text}\n"
    output.say(f"[bold]name[/bold] {text}")  # where a command forgets to say that it is text
    shown = capfd.readouterr().out
    assert "\x1b" not in shown
    assert all(word in shown for word in re.findall(r"[a-z0-9/:.]{3,}", text))


def test_our_own_styles_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="standard").print(output._markup("[bold]a[/bold] \x1b[31mb"))
    assert out.getvalue() == "\x1b[1ma\x1b[0m \\x1b[31mb\n"


def test_samples_in_the_pager_are_cleaned() -> None:
    row: dict[str, Any] = dict.fromkeys(("uri", "bucket", "id", "reason", "excerpt", "where", "rule"), "x\x1b[2J")
    page = sample._page(row | {"values": {"a\x1b": "\x9b"}})
    assert FORBIDDEN.search(page.replace("\x1b[1m", "").replace("\x1b[0m", "")) is None


@pytest.mark.parametrize("kind", [ProgressLines, ProgressBars])
def test_progress_is_cleaned(kind: Any) -> None:
    out = io.StringIO()
    with kind(out).meter("a\x1b]0;x\x07", 1) as meter:
        meter.tell("file \x1b[2J")
        meter.advance(1, "[link=x]\x1b]0;y\x07[/no]")
    assert "\x1b]" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


@pytest.mark.parametrize("hostile", ["\x1b]0;owned\x07", "\x9b2J"])
@pytest.mark.parametrize("debug", [False, True])
def test_errors_are_cleaned(plinth: Callable[..., Any], hostile: str, debug: bool) -> None:
    for args in (["explain", f"https://a.example/{hostile}"], ["-r", hostile, "recipe", "check"], [f"no{hostile}"]):
        outcome = plinth(*(["--debug"] if debug else []), *args)
        assert outcome.code != 0
        assert not FORBIDDEN.search(outcome.out + outcome.err)


def test_commands_print_by_output_alone() -> None:
    """`click.echo` and `print` would pass text on as it is; the two modules that use them clean it themselves."""
    allowed = {"output.py", "__init__.py", "sample.py"}
    folder = Path(plinth_jobs.cli.__file__).parent
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"click\.(echo|secho)|(?<![\w.])print\(|sys\.std(out|err)\.write|console\.print", path.read_text())
    }
    assert found == allowed


@pytest.mark.parametrize(
    ("amount", "shown"), [(0, "0.00"), (1.9e-6, "< 0.01"), (0.0049, "< 0.01"), (0.005, "0.01"), (1234.567, "1,234.57")]
)
def test_money_has_two_places_and_no_powers(amount: float, shown: str) -> None:
    assert output.money(amount) == shown
