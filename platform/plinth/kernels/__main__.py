"""`python -m plinth.kernels`: compile the kernels ahead of their first use.

    --carry      for every level of x86-64, into this installation: for images and wheels
"""

import sys

from plinth.errors import PlinthError
from plinth.kernels.build import CARRIED, LEVELS, compile_into, library


def main(arguments: list[str]) -> str | None:
    """Compile; returns what to tell the user where that stopped."""
    try:
        _compile(carry=arguments == ["--carry"])
    except PlinthError as error:
        return f"{error}\nThen run the same command again: compiled files are kept."
    except KeyboardInterrupt:
        return "interrupted; run the same command again: compiled files are kept"
    return None


def _compile(*, carry: bool) -> None:
    if carry:
        CARRIED.mkdir(exist_ok=True)
        for level in LEVELS:
            compile_into(CARRIED, level)
        for file in (*CARRIED.glob("*.o"), CARRIED / "lock"):
            file.unlink()
    else:
        library()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
