"""Retention: what a workspace must keep, and the deletion of unreferenced objects.

roots      what signed records, models, runs, pins and references name
pins       manifests that people keep
reachable  everything that the roots need: manifests with their ancestry, blobs
survey     the whole workspace: what is kept and why, what is unneeded, by age, with its price
deletion   delete what two surveys found unneeded, in an order that leaves a whole workspace wherever it ends
command    `plinth ops gc`

    roots ──► reachable ──► survey ──► deletion

A digest in a record counts as needed, whatever the record says of it: a new kind of record protects what it names
without a line here. Names can only add to what is kept; nothing that is written makes a needed thing unneeded.
Does not belong here: the checkpoints of a run (`training.checkpoint.retention`), whether a signature holds (registry).
"""
