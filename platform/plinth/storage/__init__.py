"""The only package that touches bytes at rest.

    uris        locations: `file://` and `s3://`, through fsspec
    files       files of a source, read once and compared with the inventory
    listing     the files at a location: names, digests, marks of change
    digests     SHA-256 of files and pieces, remembered while a file does not change
    atomic      write to a temporary name, flush, rename; a full disk is a named error
    locks       locks between processes: exclusive, inherited by children, with an owner; leases
    workspace   the one directory that holds all state, and its layout
    store       content store in DVC's `files/md5` layout: put, open, verify
    checkout    write a manifest's files out of the store; find a manifest by digest prefix
    dvc         pointers for plain `dvc pull`, restore, push and pull; the one module on dvc-data
    parts       tables to and from Parquet blobs in the store
    steps       the step cache: key -> parts, written last
    refs        manifests by digest, and the published manifest of each asset
    state       a workspace with its store, step cache and refs, opened
    tensor_file tensors in the safetensors layout, written and hashed in one pass

Does not belong here: the meaning of the bytes.
"""
