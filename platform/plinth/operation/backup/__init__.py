"""Backup of a workspace: everything that cannot be made again, with proof that it can be put back.

inventory   what belongs to a backup, in the order in which it is copied, and why that is consistent
snapshot    the record of one backup: files by SHA-256, databases with their row counts; written last
databases   copies of SQLite and PostgreSQL at one moment each, and their way back
taking      take a backup, while others write
restoring   put one back into an empty place, each byte compared

    TO/objects/ab/abcd…           content, by SHA-256, shared by all backups at TO
    TO/snapshots/TIME-SHA256.json one backup; its name has the digest of its bytes

Private keys, the secret of the workers' seal and MLflow's accounts lie outside the workspace and are in no backup. Does
not belong here: what a signature means (registry), the drill (`plinth_jobs.backup_drill`).
"""
