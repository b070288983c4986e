"""The only package that touches bytes at rest.

    uris        locations: `file://`, `s3://`, `https://`, `cc://`, `hf://`, through fsspec
    http        files of web servers, over lines that break
    common_crawl  files of a crawl by its list, records by its index
    hub         files of the Hugging Face Hub, at one commit
    safe_path   names that others have written, as paths that stay below their folder
    started     processes that Plinth started for a workspace on this machine
    addresses   where `plinth up` serves a workspace now
    off_limits  keys, credentials and private folders, which no source may lead to
    files       files of a source, read once and compared with the inventory
    listing     the files at a location: names, digests, marks of change
    digests     SHA-256 of files and pieces, remembered while a file does not change
    atomic      write to a temporary name, flush, rename; a full disk is a named error
    plain_file  files that are verified: no link or pipe, read once
    database    rows that several processes write, in SQLite or PostgreSQL
    locks       locks between processes: exclusive, inherited by children, with an owner; leases
    started     processes started for a workspace, recorded where no writer of the workspace reaches
    objects     small named objects with conditional writes, as files of a folder or in S3
    s3_objects  objects and blobs below an `s3://` prefix: conditional writes, checked uploads, bounded retries
    workspace   the folder, or the prefix with a folder on each machine, that holds all state, and its layout
    verified    blobs compared with their SHA-256: now, or by their first reader on this machine
    store       content store in DVC's `files/md5` layout: put, open, verify
    destination files for other programs, local or remote: whole or not at all, with their digests
    blob_cache  blobs of a remote in a bounded cache that the processes of a machine share
    remote_blobs, leases   what it reads from, and what living processes have open in it
    shared_store  the content store of a shared workspace: a bucket behind such a cache
    checkout    write a manifest's files out of the store; find a manifest by digest prefix
    dvc         pointers for plain `dvc pull`, restore, push and pull; the one module on dvc-data
    parts       tables to and from Parquet blobs in the store
    seal        whether one of the workspace's own workers wrote a reference or step record
    steps       the step cache: key -> parts, written last
    refs        manifests by digest, and the published manifest of each asset
    state       a workspace with its store, step cache and refs, opened
    tensor_file tensors in the safetensors layout, written and hashed in one pass

Does not belong here: the meaning of the bytes.
"""
