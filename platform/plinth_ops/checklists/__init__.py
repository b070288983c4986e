"""Checklists that the platform evaluates itself: before production, for readiness, in an incident, for security.

    review          all lines, their evaluation, signed waivers
    trust_checks    root of trust, secrets, code
    place_checks    modes, room, clocks, encryption, connections
    run_checks      text, training, money and promises
    release_checks  signed logs, releases, MLflow's server, the orchestrator
    dagster_assets  checklists as assets with a check for each line, by schedule
    command         `plinth ops check`

Another package adds a line by an entry point of the group `plinth.checks`. Does not belong here: the checks of a host
before ranks start (`training.supervise`); checks of one manifest before it is published (`plinth_assets.framework`).
"""
