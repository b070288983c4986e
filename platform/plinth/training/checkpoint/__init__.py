"""Checkpoints of a run. A checkpoint is either fully committed or does not exist.

    snapshot ──► saving ──► writer ──► staging/step-N ──► checkpoint: one rename, one record ──► upload ──► bucket

Every rank hashes, writes, verifies and reads only its own files, so the work per rank falls as ranks are added.

Files only, without torch:

    checkpoint      stage, commit, verify, list, delete
    commit_record   the signed record that makes a directory a checkpoint
    digest_tree     a signed root over one manifest per rank; each lists files with path, size and digest
    mean_record     signed attestation of an average of checkpoints: its files and parent checkpoints
    selection       choice of the checkpoint to resume from; retention
    rank_part       writes one rank's part, and commits once every rank has written
    writer          process that writes a rank's part, and its client
    shares          checkpoints of a run in a shared workspace: the ranks' shares, the commit in the bucket
    remote          committed checkpoints in a bucket
    upload          upload during training; download on a machine without checkpoints

The state of a run, with torch:

    saving               saves during training
    snapshot             saving and loading of the full state of a run
    model_share          whole parameters of the model, divided among ranks
    universal            DeepSpeed's state in a layout-independent form, and back
    sharded_state        the files of the layout-independent state: spans of whole parameters, by name
    staging              copy of a rank's state in shared memory, and its digests
    resume               verification of a checkpoint by all ranks together; restores the parent's optimizer state
                         on request
"""
