"""A checkpoint is committed or it does not exist.

    snapshot ──► saving ──► writer ──► staging/step-N ──► checkpoint: one rename, one record ──► upload ──► bucket

Every rank hashes, writes, verifies and reads its share: the work of a rank falls with their number.

Files only, without torch:

    checkpoint      stage, commit, verify, list, delete
    commit_record   the signed record that makes a directory a checkpoint
    digest_tree     a signed root over one manifest per rank; files by path, size and digest
    mean_record     the signed statement of a mean: its files and the checkpoints that it is of
    selection       the checkpoint that a run goes on from; the checkpoints that stay
    rank_part       writes one rank's part, and commits when every rank has written
    writer          the process beside a rank that writes its part, and its client
    remote          committed checkpoints in a bucket
    upload          copies them there during training; downloads them on a machine that has none

The state of a run, with torch:

    saving               saves while the run trains
    snapshot             the full state of a run, into a checkpoint and out of it
    model_share          this rank's share of the model as whole parameters
    universal            DeepSpeed's state as addresses that belong to no layout, and back
    sharded_state        the files of that state: spans of whole parameters, by name
    staging              a rank's state in memory that another process can read; digests of it, also while it is filled
    resume               all ranks verify, each its share, and agree; the optimizer's state of the weights that a run
                         begins from, where the recipe keeps it
"""
