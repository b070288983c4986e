"""Automatic starts: new source files, approvals, failures. Sensors poll.

release    approvals, the canary on trial, MLflow's view; the feed of taints and movements of releases, for consumers
upkeep     new source files, pages, failed runs, automation conditions

Does not belong here: what the clock starts (`definitions`).
"""
