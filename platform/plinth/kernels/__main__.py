"""`python -m plinth.kernels`: compile the kernels ahead of their first use.

    --carry      for every level of x86-64, into this installation: for images and wheels
"""

import sys

from plinth.kernels.build import CARRIED, LEVELS, compile_into, library

if __name__ == "__main__":
    if sys.argv[1:] == ["--carry"]:
        CARRIED.mkdir(exist_ok=True)
        for level in LEVELS:
            compile_into(CARRIED, level)
        for file in (*CARRIED.glob("*.o"), CARRIED / "lock"):
            file.unlink()
    else:
        library()
