"""Private folders (`plinth_text.private`), and the permissions of all files that Plinth writes.

Files that Plinth writes elsewhere are private to their user as well (0600, folders 0700), unless `PLINTH_UMASK` is set:
`007` if the members of a group share a workspace.
"""

from __future__ import annotations

import os

from plinth.errors import WorkspaceError
from plinth_text.private import VARIABLE, folder, required, root

__all__ = ["MASK", "MASK_VARIABLE", "VARIABLE", "apply_mask", "folder", "for_torch", "mask", "required", "root"]

#: Variable with the mask of permissions, in octal digits.
MASK_VARIABLE = "PLINTH_UMASK"
MASK = "077"


def for_torch() -> None:
    """Set private folders for the files that torch compiles, unpickles, or loads at its next start."""
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
        os.environ.setdefault(variable, str(folder(variable.rpartition("_")[0].lower().replace("_", "-"))))


def mask() -> int:
    """Return the umask: the permission bits that new files and folders do not get.

    Raises:
        WorkspaceError: `PLINTH_UMASK` is not a valid mask.
    """
    given = os.environ.get(MASK_VARIABLE) or MASK
    if len(given) > 4 or set(given) - set("01234567"):
        raise WorkspaceError(f"{MASK_VARIABLE} is not a mask", found=given, expected="octal digits, such as 077 or 007")
    return int(given, 8)


def apply_mask() -> None:
    """Set the umask of this process and its children. Call it at the start of a program."""
    os.umask(mask())
