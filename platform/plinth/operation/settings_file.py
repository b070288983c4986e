"""Settings of a workspace in a YAML file that people write; without the file, those by default.

Does not belong here: recipes, whose errors name key and line (`plinth.recipe`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from plinth.errors import RequestError
from plinth.records import Frozen

S = TypeVar("S", bound=Frozen)


def read_settings(path: Path, kind: type[S], lacks: str, docs: str) -> S:
    """The settings of a file, or the defaults where there is none.

    Args:
        kind: their model.
        lacks: of a file that cannot be used: what it lacks, after its path.
        docs: the page that describes them.

    Raises:
        RequestError: the file cannot be used.
    """
    try:
        return kind.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except FileNotFoundError:
        return kind()
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as cause:
        raise RequestError(
            f"{path} {lacks}", found=str(cause), expected=", ".join(kind.model_fields), remedy=f"see {docs}"
        ) from cause
