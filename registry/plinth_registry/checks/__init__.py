"""Lines of checklists that need the registry; the mechanism is `plinth.operation.checklists`.

log_checks      signed logs, audit log, head of the releases, seals
release_checks  gate policy, lineage, champion, a version to return to, marks, incidents
server_checks   logins, and servers that run for nobody
"""
