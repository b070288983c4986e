"""What it costs to serve a checkpoint, beside every number of what it can do.

    bounds   tokens per second, time to the first token and memory on named devices, worked out (the asset `serving`)
    records  the same measured on this machine: a record of the workspace, in no identity

Worked-out numbers follow from the configuration alone, so they are an asset. Measured ones differ each time, so they
are a record beside the assets, as costs of stages are: the newest of each checkpoint, with the machine it was made on.
"""
