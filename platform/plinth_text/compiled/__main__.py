"""Command line `python -m plinth_text.compiled [--carry] [PACKAGE ...]`: compile kernels ahead of their first use.

    --carry      compile for every level of x86-64 into this installation, for images and wheels
    PACKAGE      package whose kernels are compiled; by default `plinth_text`
"""

import sys

from plinth_text.compiled.build import CARRIED, LEVELS, OWN, compile_into, library
from plinth_text.errors import ExplainedError


def main(arguments: list[str]) -> str | None:
    """Compile the kernels of the given packages. If compilation fails, return a message for the user."""
    try:
        _compile([each for each in arguments if each != "--carry"] or [OWN], carry="--carry" in arguments)
    except ExplainedError as error:
        return f"{error}\nThen run the same command again: compiled files are kept."
    except KeyboardInterrupt:
        return "Interrupted. Run the same command again: compiled files are kept."
    return None


def _compile(packages: list[str], *, carry: bool) -> None:
    if not carry:
        for package in packages:
            library(package)
        return
    CARRIED.mkdir(exist_ok=True)
    for package in packages:
        for level in LEVELS:
            compile_into(CARRIED, package, level)
    for file in (*CARRIED.glob("*.o"), CARRIED / "lock"):
        file.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
