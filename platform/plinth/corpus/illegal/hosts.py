"""Host names of addresses, and the domains that stand for them."""

from __future__ import annotations

import re
from collections.abc import Container
from urllib.parse import urlsplit

LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
HOST = re.compile(rf"(?:{LABEL}\.)+{LABEL}")


def domain(line: str) -> str:
    """A line of a list of domains.

    Raises:
        ValueError: no host name with a dot in it.
    """
    name = line.lower().removeprefix("www.").strip(".")
    if not HOST.fullmatch(name):
        raise ValueError("a host name with a dot, such as example.org")
    return name


def host(uri: str) -> str:
    """The host of an address, lower case; empty where it has none (names of files do not)."""
    if "://" not in uri:
        return ""
    try:
        return (urlsplit(uri.lower()).hostname or "").rstrip(".")
    except ValueError:  # a bracket that is no address
        return ""


def listed(uri: str, domains: Container[str]) -> str | None:
    """The longest listed domain that the host of an address is, or lies below."""
    labels = host(uri).split(".")
    names = (".".join(labels[i:]) for i in range(len(labels)))
    return next((name for name in names if name in domains), None)
