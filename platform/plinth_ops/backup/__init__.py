"""Backup of a workspace: everything that cannot be rebuilt, with a test of the restore.

snapshot    what belongs to a backup, in which order; the record of one backup and the archive of all
taking      copies of databases at one moment and their way back; take a backup of a workspace while others write
drill       put a backup back into an empty place; the drill that proves it, in a scratch place
command     `plinth ops backup`

    TO/objects/ab/abcd…           content, by SHA-256, shared by all backups at TO
    TO/snapshots/TIME-SHA256.json one backup; its name has the digest of its bytes

Private keys, the secret of the workers' seal and MLflow's accounts are outside the workspace and in no backup. Does not
belong here: what a signature means (registry).
"""
