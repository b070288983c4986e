"""Checkpoints of a run. A checkpoint is either fully committed or does not exist.

    snapshot ──► saving ──► writer ──► staging/step-N ──► checkpoint: one rename, one record ──► upload ──► bucket

Every rank hashes, writes, verifies and reads its share, so work per rank falls with the number of ranks.

Files only, without torch:

    checkpoint      stage, commit, verify, list, delete
    commit_record   the signed record that makes a directory a checkpoint
    digest_tree     a signed root over one manifest per rank; files by path, size and digest
    mean_record     signed attestation of a mean: its files and parent checkpoints
    selection       choice of the checkpoint to resume from; retention
    rank_part       writes one rank's part, and commits once every rank has written
    writer          process that writes a rank's part, and its client
    remote          committed checkpoints in a bucket
    upload          upload during training; download on a machine without checkpoints

The state of a run, with torch:

    saving               saves during training
    snapshot             saving and loading of the full state of a run
    model_share          this rank's share of the model as whole parameters
    universal            DeepSpeed's state in a layout-independent form, and back
    sharded_state        the files of that state: spans of whole parameters, by name
    staging              a rank's state in shared memory; its digests, also while it is filled
    resume               all ranks verify, each its share, and agree; restores the parent's optimizer state on
                         request
"""
