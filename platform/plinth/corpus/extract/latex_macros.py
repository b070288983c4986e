"""Macros of a LaTeX file, expanded before it is parsed; and macros whose arguments are no text, taken out.

Definitions are `\\newcommand` and its kin with arguments and defaults, `\\def` without delimiters, `\\let`,
`\\DeclareMathOperator`, `\\newenvironment` and `\\newtheorem`. Those that program TeX are left alone, and so are names
that `latex` knows. Expansion is bounded in depth, number and size: beyond the bounds a macro is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

MAX_DEPTH, MAX_EXPANSIONS, MAX_GROWTH, SPARE_CHARACTERS = 32, 50_000, 4, 1_000_000
_DEFINERS = ("newcommand", "renewcommand", "providecommand", "DeclareRobustCommand")
_ENVIRONMENTS = ("newenvironment", "renewenvironment")
#: Macros that show nothing, by their arguments: `[` may be there, `{` is.
KEYS = {"label": "{", "index": "[{", "sindex": "[{", "glossary": "[{", "nomenclature": "[{{", "indexsee": "{{"}
KEYS |= {"indexseealso": "{{", "printindex": "[", "printglossary": "[", "printglossaries": "", "glsadd": "[{"}
KEYS |= {"makeindex": "[", "makeglossaries": "", "nocite": "{", "phantomsection": "", "addcontentsline": "{{{"}
KEYS |= {"markboth": "{{", "markright": "{", "bibitem": "[{", "pagenumbering": "{", "setcounter": "{{"}
KEYS |= {"addtocounter": "{{", "hypertarget": "{", "linelabel": "{", "zlabel": "{", "footnotemark": "["}
_VERBATIM = ("verbatim", "verbatim*", "lstlisting", "minted", "Verbatim", "comment")
_TOKEN = re.compile(r"%[^\n]*|\\([A-Za-z@]+\*?|.)", re.S)
_SPACE = re.compile(r"(?:\s|%[^\n]*\n)*")
_GROUP = re.compile(r"\\.|%[^\n]*|[{}]", re.S)
_NAME = re.compile(r"\\([A-Za-z@]+)")
_PARAMETERS = re.compile(r"(?:#\d)*")
_PROGRAM = re.compile(r"\\(?:@|catcode|expandafter|csname|if|loop|futurelet|make)")
_PLACE = re.compile(r"##|#(\d)")


@dataclass(frozen=True)
class Macro:
    """A definition: number of arguments, default of the first, and text; of an environment, the text of its end."""

    count: int
    default: str | None
    body: str
    end: str | None = None


def expanded(source: str, known: Collection[str]) -> str:
    """A source without its definitions, with the macros that it defines expanded.

    Args:
        known: names that are not redefined.
    """
    return _Expansion(frozenset(known), len(source) * MAX_GROWTH + SPARE_CHARACTERS).text(source, 0)


@dataclass
class _Expansion:
    known: frozenset[str]
    left: int
    expansions: int = MAX_EXPANSIONS
    macros: dict[str, Macro] = field(default_factory=dict)
    environments: dict[str, Macro] = field(default_factory=dict)

    def text(self, source: str, depth: int) -> str:
        out, at = list[str](), 0
        while token := _TOKEN.search(source, at):
            out.append(source[at : token.start()])
            written, at = self._token(source, token, depth)
            out.append(written)
        return "".join((*out, source[at:]))

    def _token(self, source: str, token: re.Match[str], depth: int) -> tuple[str, int]:
        """What a macro or comment gives, and where it ends with its arguments."""
        name, at = token[1] or "", token.end()
        plain = name.rstrip("*")
        if not name:
            return token[0], at
        if plain in ("verb", "lstinline"):
            end = source.find(source[at : at + 1], at + 1) if at < len(source) else -1
            return (source[token.start() : end + 1], end + 1) if end > 0 else (token[0], at)
        if plain in ("begin", "end"):
            return self._environment(source, token, depth)
        if (defined := self._define(source, plain, at)) is not None:
            return "", defined
        if plain in KEYS:
            return "", _skipped(source, at, KEYS[plain])
        macro = self.macros.get(plain)
        if macro is None:
            return token[0], at
        return self._called(source, macro, token.start() + 1 + len(plain), depth)

    def _called(self, source: str, macro: Macro, at: int, depth: int) -> tuple[str, int]:
        arguments, end = _arguments(source, at, macro)
        if not macro.count:
            end = _SPACE.match(source, at).end() if _NAME.match(source, at) is None else at  # type: ignore[union-attr]
            end = at if source.count("\n", at, end) > 1 else end
        body = macro.body
        following = source[end : end + 1]
        if body.endswith(r"\xspace"):
            body = body.removesuffix(r"\xspace") + (" " if following.isalnum() or following in ("(", "$") else "")
        written = self._filled(body, arguments, depth)
        joins = following.isalpha() and re.search(r"\\[A-Za-z]+\Z", written)
        return written + (" " if joins else ""), end

    def _filled(self, body: str, arguments: list[str], depth: int) -> str:
        """A text with its arguments in place, expanded; nothing beyond the bounds."""
        self.expansions -= 1
        if depth >= MAX_DEPTH or self.expansions < 0 or self.left < 0:
            return ""

        def argument(place: re.Match[str]) -> str:
            number = int(place[1]) if place[1] else 0
            return arguments[number - 1] if 0 < number <= len(arguments) else "#" if not place[1] else ""

        written = self.text(_PLACE.sub(argument, body), depth + 1)
        self.left -= len(written)
        return written

    def _environment(self, source: str, token: re.Match[str], depth: int) -> tuple[str, int]:
        name, at = _group(source, token.end())
        if token[1] == "begin" and name in _VERBATIM:
            end = source.find(f"\\end{{{name}}}", at)
            end = len(source) if end < 0 else end
            return ("" if name == "comment" else source[token.start() : end]), end
        macro = self.environments.get(name)
        if macro is None or macro.end is None:
            return source[token.start() : at], at
        if token[1] != "begin":
            return self._filled(macro.end, [], depth), at
        arguments, at = _arguments(source, at, macro)
        return self._filled(macro.body, arguments, depth), at

    def _define(self, source: str, definer: str, at: int) -> int | None:
        """Take a definition in; where it ends, or None where there is none."""
        if definer in _DEFINERS or definer == "DeclareMathOperator":
            name, at = _group(source, at)
            count, default, at = _signature(source, at) if definer in _DEFINERS else (0, None, at)
            body, at = _group(source, at)
            body = body if definer in _DEFINERS else rf"\operatorname{{{body}}}"
            self._keep(name, Macro(count, default, body), new=definer == "providecommand")
        elif definer == "def":
            if not (name_at := _NAME.match(source, at)):
                return None
            parameters = _PARAMETERS.match(source, name_at.end())
            if parameters is None or source[parameters.end() : parameters.end() + 1] != "{":
                return None
            body, at = _group(source, parameters.end())
            self._keep(name_at[0], Macro(len(parameters[0]) // 2, None, body))
        elif definer == "let":
            pair = re.compile(r"\s*(\\[A-Za-z@]+)\s*=?\s*(\\[A-Za-z@]+)").match(source, at)
            if pair is None:
                return None
            at = pair.end()
            self._keep(pair[1], self.macros.get(pair[2][1:], Macro(0, None, pair[2])))
        elif definer in _ENVIRONMENTS:
            name, at = _group(source, at)
            count, default, at = _signature(source, at)
            (body, at), (end, at) = (first := _group(source, at)), _group(source, first[1])
            if not _PROGRAM.search(body + end) and f"{{{name}}}" not in body + end and name not in self.known:
                self.environments[name] = Macro(count, default, body, end)
        elif definer == "newtheorem":
            name, at = _group(source, at)
            at = _skipped(source, at, "[")
            caption, at = _group(source, at)
            at = _skipped(source, at, "[")
            self.environments[name] = Macro(1, "", f"\n\n{caption}\ufdd3#1\ufdd3 ", "\n\n")
        else:
            return None
        return at

    def _keep(self, name: str, macro: Macro, new: bool = False) -> None:
        name = name.strip().removeprefix("\\")
        if name in self.known or name in KEYS or _PROGRAM.search(macro.body) or (new and name in self.macros):
            return
        self.macros[name] = macro


def _signature(source: str, at: int) -> tuple[int, str | None, int]:
    """Number of arguments, default of the first, and where they end."""
    number, at = _optional(source, at)
    default, at = _optional(source, at) if number is not None else (None, at)
    return int(number) if number and number.strip().isdecimal() else 0, default, at


def _arguments(source: str, at: int, macro: Macro) -> tuple[list[str], int]:
    found = list[str]()
    if macro.default is not None and macro.count:
        given, at = _optional(source, at)
        found.append(macro.default if given is None else given)
    while len(found) < macro.count:
        argument, at = _group(source, at)
        found.append(argument)
    return found, at


def _skipped(source: str, at: int, form: str) -> int:
    """Where the arguments of a form end."""
    for one in "*" + form:
        if one == "*":
            at += source[at : at + 1] == "*"
        elif one == "[":
            _, at = _optional(source, at)
        else:
            _, at = _group(source, at)
    return at


def _group(source: str, at: int) -> tuple[str, int]:
    """The next argument, and where it ends: a group in braces, a macro, a character; empty at the end."""
    start = _SPACE.match(source, at).end()  # type: ignore[union-attr]
    if source[start : start + 1] == "*":
        start = _SPACE.match(source, start + 1).end()  # type: ignore[union-attr]
    if source[start : start + 1] == "\\":
        token = _TOKEN.match(source, start)
        return (token[0], token.end()) if token else ("", at)
    if source[start : start + 1] != "{":
        return source[start : start + 1], min(start + 1, len(source))
    end = _closing(source, start + 1, "}")
    return source[start + 1 : end], min(end + 1, len(source))


def _optional(source: str, at: int) -> tuple[str | None, int]:
    start = _SPACE.match(source, at).end()  # type: ignore[union-attr]
    if source[start : start + 1] != "[":
        return None, at
    end = _closing(source, start + 1, "]")
    return source[start + 1 : end], min(end + 1, len(source))


_BRACKETS = re.compile(r"\\.|%[^\n]*|[{}\]]", re.S)


def _closing(source: str, at: int, mark: str) -> int:
    """Where a group ends that began before `at`; the end of the source where it does not."""
    depth = 0
    for found in (_GROUP if mark == "}" else _BRACKETS).finditer(source, at):
        if found[0] == mark and not depth:
            return found.start()
        depth += (found[0] == "{") - (found[0] == "}")
        if depth < 0:
            return found.start()
    return len(source)
