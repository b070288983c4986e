"""Automatic starts: new source files, approvals, failures. Sensors poll.

arrival    sources, lists and protected sets that differ from what is published
release    approvals, the canary on trial, what MLflow shows
feed       marks and movements of releases, for consumers, alarms and assets
upkeep     pages, failed runs, automation conditions
alarms     the line that a pager reads

Does not belong here: what the clock starts (`schedules`).
"""
