"""Display of untrusted text in terminals and Markdown, counts in words, and canonical host names.

Kernels over text are in `plinth_text`.
"""

from __future__ import annotations

import html
import re
import unicodedata
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import unquote


def counted(number: int, what: str, verb: str = "") -> str:
    """Return a count with its noun and verb. The noun is given in the singular and the verb in the infinitive, such as
    `step` and `be`.

    Examples are `1 step`, `2 steps`, `1 file is`, `1,000 entries hold`.
    """
    one = number == 1
    noun = what if one else f"{what[:-1]}ies" if what.endswith("y") and what[-2:-1] not in "aeiou" else f"{what}s"
    said = ("is" if one else "are") if verb == "be" else f"{verb}s" if verb and one else verb
    return f"{number:,} {noun} {said}".rstrip()

#: Control characters of ASCII and Latin-1 except line ends and tabs, direction marks, line separators, and unpaired
#: surrogates, which cannot be printed.
_COMMANDS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def visible(text: str) -> str:
    r"""Return text with control and direction characters as Python escapes like `\x1b`; line ends and tabs stay."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped(json_text: str) -> str:
    r"""Return a JSON document with control and direction characters as `\u001b`; its meaning does not change."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


# Escaping of text for Markdown pages, so that no renderer shows markup, links or pictures in it.

#: Characters that begin a link, a picture or a cell; also the backslash, which would cancel the escape before it.
_MARKUP = re.compile(r"([\\\[|])")


def markdown_text(text: object) -> str:
    """Return text on one line, without control characters, markup or direction marks."""
    return _MARKUP.sub(r"\\\1", html.escape(_one_line(text), quote=False).replace("`", "'"))


def markdown_code(text: object) -> str:
    """Return text on one line, as Markdown code. Pipes are escaped, because tables need this even in code."""
    words = _one_line(text).replace("`", "'").replace("\\|", "\\ |").replace("|", "\\|")
    return f"`{words}`"


def _one_line(text: object) -> str:
    visible = (c if unicodedata.category(c)[0] != "C" else " " for c in str(text))
    return " ".join("".join(visible).split())


# Canonical host names of addresses for comparison and storage, as browsers read them (WHATWG URL).
#
# case, dots       lower case; no dot at the end; the full stops of East Asia are dots
# beyond ASCII     punycode (`xn--`) of the compatibility form: bücher.example, BÜCHER.example, b%C3%BCcher.example
# IP addresses     four decimal numbers out of one to four decimal, octal or hexadecimal ones; IPv6 in its short form
# around it        credentials and ports are dropped; backslashes are slashes, line ends and tabs are removed

LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
#: A host name with a dot in it.
HOST = re.compile(rf"(?:{LABEL}\.)+{LABEL}")
EXPECTED = "a host name with a dot, such as example.org"
_WEB = re.compile(r"(?:https?|wss?|ftp):[/\\]*([^/\\?#]*)", re.I)
_OTHER = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//([^/?#]*)", re.I)
#: Pattern of a name that begins with a host and a path, without a scheme. Folder names rarely look like a host.
_BARE = re.compile(r"([^/\\?#:@\s]+\.(?:[a-z]{2,}|xn--[a-z0-9-]+|[^\x00-\x7f]+))\.?(?::\d*)?(/|\Z)", re.I)
_UNSEEN = str.maketrans("", "", "\t\r\n")
_DOTS = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})
#: Characters that UTS #46 maps to nothing.
_IGNORED = re.compile("[\xad\u034f\u180b-\u180f\u200b\u2060\u2064\ufe00-\ufe0f\ufeff]")
_NUMBER = re.compile(r"0x[0-9a-f]*|\d+")


def host(uri: str, bare: bool = False) -> str:
    """Return the host of an address, or an empty string if it has no host, like a file name.

    Args:
        bare: True also accepts a name without a scheme that is or begins with a host. Use it for look-ups in lists of
            hosts.
    """
    uri = uri.strip().translate(_UNSEEN)
    found = _WEB.match(uri) or _OTHER.match(uri)
    if found:
        return _of_authority(found[1])
    named = _BARE.match(uri)
    return host_name(named[1]) if named and (bare or named[2]) else ""


@lru_cache(maxsize=65536)
def host_name(name: str) -> str:
    """Return the canonical form of a host name or IP address, or an empty string for a broken IPv6 address."""
    if name.startswith("["):
        try:
            return str(IPv6Address(name.strip("[]").partition("%")[0]))
        except AddressValueError:
            return ""
    found = folded(name)
    return _ipv4(found) if found[-1:].isdigit() or "0x" in found else found


def folded(name: str) -> str:
    """Return a name in lower case, in punycode if it is not ASCII."""
    name = unquote(name) if "%" in name else name
    if name.isascii():
        return name.lower().rstrip(".")
    plain = unicodedata.normalize("NFKC", _IGNORED.sub("", name.translate(_DOTS))).lower().rstrip(".")
    return ".".join(_label(label) for label in unicodedata.normalize("NFC", plain).split("."))


def domain(line: str) -> str:
    """Return the canonical domain in a line of a list. `www.` is removed, since a name covers every host below it.

    Raises:
        ValueError: the line is not a host name with a dot.
    """
    name = host_name(line.strip().strip(".")).removeprefix("www.")
    if not HOST.fullmatch(name):
        raise ValueError(EXPECTED)
    return name


def domains(name: str) -> list[str]:
    """Return a host and every domain above it that has a dot, longest first. For an IP address, return only the
    address."""
    if is_ip(name):
        return [name]
    labels = name.split(".")
    return [".".join(labels[at:]) for at in range(len(labels) - 1)]


def is_ip(name: str) -> bool:
    """Return True for an IP address in the form of `host_name`."""
    return ":" in name or name.rpartition(".")[2].isdigit()


def _of_authority(text: str) -> str:
    name = text.rpartition("@")[2]
    if name.startswith("["):
        return host_name(name.partition("]")[0] + "]")
    return host_name(name.partition(":")[0])


def _label(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode", "replace").decode("ascii")


def _ipv4(name: str) -> str:
    """Return an IPv4 address for one to four numbers in any base; otherwise the name."""
    parts = name.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return name
    try:
        numbers = [_base(part) for part in parts]
    except ValueError:
        return name
    last = numbers.pop()
    if any(number > 255 for number in numbers) or last >= 256 ** (4 - len(numbers)):
        return name
    return str(IPv4Address(sum(number << 8 * (3 - at) for at, number in enumerate(numbers)) + last))


def _base(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8) if len(part) > 1 and part[0] == "0" else int(part)
