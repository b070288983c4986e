"""Retention: what a workspace must keep, and the deletion of what nothing needs any more.

naming       the digests that a text names, signed payloads included
roots        what signed records, models, runs, pins and references name
pins         manifests that people keep
reachable    everything that the roots need: manifests with their ancestry, blobs
survey       the whole workspace: what is kept and why, what nothing needs, by age
unneeded     since when nothing needs what was found; two looks lie between finding and deleting
deletion     delete in an order that leaves a whole workspace wherever it ends
storage_cost bytes by age, with what a month of them costs

    roots ──► reachable ──► survey ──► unneeded ──► deletion

A digest that stands in a record counts as needed, whatever the record says of it: a new kind of record protects what
it names without a line here. Names can only add to what is kept; nothing that is written makes a needed thing unneeded.
Does not belong here: the checkpoints of a run (`training.checkpoint.retention`), whether a signature holds (registry).
"""
