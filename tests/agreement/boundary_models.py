"""BudouX's models of word boundaries as one file, read from the installed BudouX.

python -m tests.agreement.boundary_models > platform/plinth_text/words/boundary_models.json
"""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

#: In the order of `plinth_text.words.script_words`.
NAMES = ("zh-hans", "zh-hant", "ja_word", "th")


def main() -> None:
    """Print the models, a feature a line."""
    budoux = distribution("budoux")
    print("{")
    print(f' "source": "BudouX {budoux.version}, budoux/models",')
    print(' "copyright": "2021 Google LLC; Apache License 2.0",')
    for name in NAMES:
        model = json.loads(Path(str(budoux.locate_file(f"budoux/models/{name}.json"))).read_text("utf-8"))
        features = [
            f"  {json.dumps(feature)}: {json.dumps(model[feature], ensure_ascii=False, separators=(',', ':'))}"
            for feature in sorted(model)
        ]
        print(f' "{name}": {{\n' + ",\n".join(features) + "\n }" + ("," if name != NAMES[-1] else ""))
    print("}")


if __name__ == "__main__":
    main()
