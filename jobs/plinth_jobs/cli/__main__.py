"""Entry point of `python -m plinth_jobs.cli`, which is the same as `plinth`."""

import os
import sys

from plinth_jobs.cli import main

if sys.path and sys.path[0] == os.getcwd() and not sys.flags.safe_path:
    here = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    sys.path[0:1] = [here] if sys.path[0] == here else []  # nothing else is imported from the working directory

main()
