"""`python -m jobs.cli` is `plinth`."""

from jobs.cli import main

main()
