"""Checklists that the platform evaluates itself: before production, for readiness, in an incident, for security.

    check       one line: its claim, owner and remedy, and the function that gives outcome and evidence
    scope       what is checked: a workspace with its recipe, read once for all lines
    catalog     all lines: tables of the modules below, of `plinth_registry` and `plinth_jobs`, and of plug-ins
    review      evaluate a checklist: waivers, errors, the worst outcome
    waivers     signed permission to leave a line unmet until a date
    settings    `checklists.yaml` of a workspace: who owns what, how early to warn

Tables, one row a line: `trust_checks`, `secret_checks`, `place_checks`, `code_checks`, `corpus_checks`, `run_checks`,
`money_checks`.

Does not belong here: lines that need the registry (`plinth_registry.checks`) or Dagster (`plinth_jobs.checks`); the
checks of a host before ranks start (`training.supervise`); checks of one manifest before it is published
(`plinth_assets.framework`).
"""
