"""A checkpoint is committed or it does not exist.

    checkpoint     A checkpoint is committed or it does not exist.
    file_digests   The files of a directory by path, size and digest.
    parameters     Checkpoints.
    remote         Committed checkpoints in a bucket: the same files, compared by SHA-256 on the way there and back.
    retention      Which checkpoints stay: the last, every n steps, the best, the audited, the final, and what is not
    saving         Saves the full state of a run while it trains.
    selection      Which checkpoint to go on from: the newest that verifies and has learnt from nothing that was left
    sharded_state  State in a form that belongs to no layout: pieces of whole parameters, by name, in safetensors.
    snapshot       The full state of a run, into a checkpoint and out of it.
    universal      A checkpoint of any layout on any other: where DeepSpeed keeps the state, as addresses that belong
    upload         Upload committed checkpoints beside the training, and begin from them on a machine that has none.
    writer/        The process beside a rank that writes its part of a checkpoint.
"""
