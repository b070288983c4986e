"""The command line: `plinth COMMAND`, or `plinth NOUN COMMAND`. A module holds a command or a few.

    root     `plinth` itself; errors as messages with exit codes
    nouns    the table of commands, and those that installed packages add
    options  --workspace, --recipe, --json, and the settings that they fill
    output   tables for people, JSON for programs
    generate  `plinth model generate`; a model by any of its names, ready for the evaluation engine

    start/     set up, run, state of the workspace
    corpus/    from sources to the ledger
    tokens/    tokenizer, packing, mixture
    run/       jobs, runs, checkpoints
    model/     slices of held-out text, probes, generation, comparison
    release/   keys, gates, approval, verification, export

Importing this package imports click and nothing else; a command imports heavy packages inside its function. Its help
ends with an example, and it takes `--json` where it reads.
"""

from plinth_jobs.cli.root import main

__all__ = ["main"]
