"""Retention: what a workspace must keep, and the deletion of unreferenced objects.

roots      what must be kept for its own sake, pins of people included, and everything that it needs
deletion   what is kept and why, what is unneeded and what it costs; the deletion of what two surveys found unneeded
command    `plinth ops gc`

A digest in a record counts as needed, whatever the record says of it: a new kind of record protects what it names
without a line here. Names can only add to what is kept; nothing that is written makes a needed thing unneeded.
Does not belong here: the checkpoints of a run (`training.checkpoint.retention`), whether a signature holds (registry).
"""
