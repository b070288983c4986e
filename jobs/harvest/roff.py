"""Manual page source (man and mdoc macros) to plain text: prose kept, layout dropped.

Not a typesetter: requests that draw, define or decide are skipped, paragraphs are filled, examples keep their
lines. Deterministic and fast, which `man` is not.
"""

from __future__ import annotations

import re

SPECIAL = {
    **{"em": "—", "en": "–", "hy": "-", "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "aq": "'", "dq": '"'},
    **{"bu": "•", "co": "©", "rg": "®", "tm": "™", "ga": "`", "aa": "´", "ha": "^", "ti": "~", "rs": "\\"},
    **{"<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "<-": "←", "+-": "±", "mu": "×", "de": "°", "sq": "□"},
    **{"ss": "ß", ":a": "ä", ":o": "ö", ":u": "ü", ":A": "Ä", ":O": "Ö", ":U": "Ü", "'e": "é", "`e": "è"},
    **{"'a": "á", "'o": "ó", "'i": "í", "'u": "ú", "`a": "à", "^e": "ê", "^o": "ô", ",c": "ç", "~n": "ñ"},
    **{"bv": "|", "ba": "|", "or": "|", "sl": "/", "at": "@", "sh": "#", "Do": "$", "Eu": "€", "Po": "£"},
    **{"fo": "‹", "fc": "›", "Fo": "«", "Fc": "»", "mc": "µ", "sc": "§", "ct": "¢", "ps": "¶", "dg": "†"},
    **{"12": "½", "14": "¼", "34": "¾", "S1": "¹", "S2": "²", "S3": "³", "pl": "+", "mi": "−", "eq": "="},
    **{"oA": "Å", "oa": "å", "/o": "ø", "/O": "Ø", "ae": "æ", "AE": "Æ", "lB": "[", "rB": "]", "lC": "{"},
    **{"rC": "}", "la": "⟨", "ra": "⟩", "*a": "α", "*b": "β", "*m": "μ", "*p": "π", "if": "∞", "tf": "∴"},
}
SIMPLE = {"-": "-", "e": "\\", "&": "", "~": " ", " ": " ", "0": " ", "|": "", "^": "", ")": "", "/": "", ",": ""}
SIMPLE |= {":": "", "%": "", "c": "", "d": "", "u": "", "p": "", "'": "´", "`": "`", ".": ".", "\\": "\\", "t": "\t"}
_ESCAPE = re.compile(
    r"\\(?:\((?P<two>..)|\[(?P<long>[^\]]*)\]|[fFgmMnkYV*](?:\(..|\[[^\]]*\]|.)|s(?:[-+]?\d{1,2}|[-+]?\(..|[-+]?\[[^\]]*\]"
    r"|[-+]?'[^']*')|[hvwlLoDXZbSHAxRN](?:'[^']*'|)|(?P<one>.))",
    re.DOTALL,
)
_CJK = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_WORD = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')

HEADINGS = {"SH", "SS", "Sh", "Ss"}
BREAKS = {
    "PP",
    "P",
    "LP",
    "HP",
    "Pp",
    "TP",
    "TQ",
    "br",
    "sp",
    "Lp",
    "RS",
    "RE",
    "Bl",
    "El",
    "Bd",
    "Ed",
    "in",
    "ti",
    "ce",
}
LITERAL_ON, LITERAL_OFF = {"nf", "EX", "Vb", "Bd"}, {"fi", "EE", "Ve", "Ed"}
FONTS = {"B", "I", "SM", "SB", "R"}
ALTERNATING = {"BR", "IR", "RB", "RI", "BI", "IB"}
SKIPPED_BLOCKS = {"de": "..", "am": "..", "de1": "..", "ig": "..", "TS": ".TE", "EQ": ".EN", "PS": ".PE"}
#: mdoc macros that only mark up their arguments.
INLINE = {
    *("Ar", "Cm", "Ic", "Li", "Em", "Sy", "Pa", "Va", "Vt", "Ev", "Er", "Dv", "Fa", "Ft", "Fn", "Op", "Fo", "Fc"),
    *("No", "Ns", "Ad", "An", "Cd", "Tn", "Lk", "Mt", "St", "In", "Aq", "Ao", "Ac", "Oo", "Oc", "Xo", "Xc", "Bx"),
    *("At", "Ux", "Nx", "Fx", "Ox", "Dq", "Do", "Dc", "Sq", "So", "Sc", "Ql", "Qq", "Pq", "Po", "Pc", "Bq", "Brq"),
    *("Pf", "Ap", "Ms", "Rv", "Ex", "D1", "Dl", "Me", "Fl", "Nm", "Xr", "Bsx", "Dx", "Sm"),
}


def to_text(source: str) -> str:
    """The text of a manual page; empty when the page only includes another."""
    page = _Page()
    for line in _joined(source):
        page.line(line)
    page.flush()
    return "\n".join(page.out).strip("\n")


def _joined(source: str) -> list[str]:
    """Lines, with those that end in a backslash continued."""
    return source.replace("\r\n", "\n").replace("\\\n", "").split("\n")


class _Page:
    def __init__(self) -> None:
        self.out: list[str] = []
        self._paragraph = ""
        self._literal = False
        self._until = ""  # the line that ends a skipped block
        self._braces = 0
        self._tag_next = False
        self._name = ""

    def line(self, line: str) -> None:
        """Take one line of source."""
        if self._until:
            if line.replace(" ", "").startswith(self._until):
                self._until = ""
            return
        if self._braces:
            self._braces += line.count("\\{") - line.count("\\}")
            return
        if line[:1] in (".", "'"):
            self._request(line[1:].lstrip())
        elif line.strip():
            self._text(line)
        else:
            self._break(blank=True)

    def flush(self) -> None:
        """End the paragraph that is being filled."""
        if self._paragraph.strip():
            self.out.append(" ".join(self._paragraph.split()))
        self._paragraph = ""

    def _request(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if not name or name.startswith(('\\"', "\\#")):
            return
        if "\t" in name:
            name, _, rest = line.partition("\t")
        if name in ("if", "ie", "el", "while"):
            self._braces = max(0, line.count("\\{") - line.count("\\}"))
        elif name in SKIPPED_BLOCKS:
            self._break()
            self._until = SKIPPED_BLOCKS[name]
        elif name in HEADINGS:
            self._break(blank=True)
            self._literal = False
            self.out.append(self._words(rest))
        elif name in ("TH", "Dt"):
            words = _split(rest)
            self._name = words[0] if words else ""
            self.out.append(unescape(f"({words[1]})".join((words[0], ""))) if len(words) > 1 else "")
        else:
            self._inner(name, rest)

    def _inner(self, name: str, rest: str) -> None:
        """Requests inside a section."""
        if name in LITERAL_ON or name in LITERAL_OFF:
            self._break(blank=name in ("EX", "Vb", "Bd", "EE", "Ve", "Ed"))
            self._literal = name in LITERAL_ON
        elif name in BREAKS:
            self._break(blank=name in ("PP", "P", "LP", "HP", "Pp", "TP", "sp", "Lp"))
            self._tag_next = name in ("TP", "TQ")
        elif name in ("IP", "It"):
            self._break(blank=True)
            self._tag(" ".join(_split(rest)[:1]) if name == "IP" else self._mdoc(rest))
        elif name in FONTS:
            self._text(" ".join(_split(rest)))
        elif name in ALTERNATING:
            self._text("".join(_split(rest)))
        elif name in ("UR", "MT"):
            self._text(rest)
        elif name == "Nd":
            self._text(f"– {self._mdoc(rest)}")
        elif name in INLINE:
            if name == "Nm" and rest and not self._name.islower():
                self._name = _split(rest)[0]
            self._text(self._mdoc(f"{name} {rest}"))

    def _text(self, line: str) -> None:
        text = unescape(line)
        if self._tag_next:
            self._tag_next = False
            self._tag(text)
        elif self._literal:
            self.out.append(text.rstrip())
        elif self._paragraph:
            glue = "" if _CJK.match(self._paragraph[-1:]) and _CJK.match(text[:1]) else " "
            self._paragraph += glue + text
        else:
            self._paragraph = text

    def _tag(self, text: str) -> None:
        self.flush()
        text = unescape(text).strip()
        if text in ("•", "*", "-", "–", "o", "·"):
            self._paragraph = "-"
        elif text:
            self.out.append(text)

    def _break(self, *, blank: bool = False) -> None:
        self.flush()
        if blank and self.out and self.out[-1]:
            self.out.append("")

    def _words(self, rest: str) -> str:
        return unescape(" ".join(_split(rest)))

    def _mdoc(self, rest: str) -> str:
        """Arguments of an mdoc line with the macros among them applied."""
        out: list[str] = []
        words = _split(rest)
        flag = False
        for index, word in enumerate(words):
            if word == "Fl":
                flag = True
                if index + 1 == len(words) or words[index + 1] in INLINE:
                    out.append("-")
            elif word == "Nm":
                if index + 1 == len(words) or words[index + 1] in INLINE or len(words[index + 1]) == 1:
                    out.append(self._name)
            elif word in INLINE:
                flag = False
            elif word in (".", ",", ":", ";", ")", "]", "?", "!") and out:
                out[-1] += word
            else:
                out.append(f"-{word}" if flag else word)
        return " ".join(out)


def _split(rest: str) -> list[str]:
    """Arguments of a request; quotes group, a doubled quote is one."""
    rest = rest.split('\\"', 1)[0]
    return [quoted.replace('""', '"') if quoted or not plain else plain for quoted, plain in _WORD.findall(rest)]


def unescape(text: str) -> str:
    """Text with roff escapes resolved: fonts, sizes and motions go, characters stay."""
    return _ESCAPE.sub(_resolve, text) if "\\" in text else text


def _resolve(match: re.Match[str]) -> str:
    if match["one"] is not None:
        return "" if match["one"] in ('"', "#") else SIMPLE.get(match["one"], match["one"])
    name = match["two"] or match["long"]
    if name is None:
        return ""
    if name.startswith("u") and re.fullmatch(r"u[0-9A-F]{4,6}", name):
        code = int(name[1:], 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else ""
    return SPECIAL.get(name, "")
