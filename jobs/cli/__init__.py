"""The command line: `plinth COMMAND`. One file per command or small group, imported when it is called.

    root       the group, its help, exit codes: errors in plain words, never a traceback
    options    --workspace, --recipe, --json, and the settings that they fill
    output     tables for people, JSON for programs
    remembered the recipe that a workspace was last run with

    run        run, up                         work
    look       status, funnel, report          what is there
    explain    explain                         one document's story
    batch      batch                           one training step's documents
    verify     verify                          the way back to the sources
    release    approve, promote, rollback, taint
    content    restore, export                 out of the content store; export_tokens, export_model
    plan       plan                            before it is spent
    doctor     doctor                          this machine
    recipe     recipe check | show | schema    the user's YAML

Importing this package costs click and nothing else.
"""

from jobs.cli.root import main

__all__ = ["main"]
