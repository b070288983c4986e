"""The only package that touches bytes at rest.

    uris        locations: `file://`, `s3://`, `https://`, `cc://`, `hf://`, through fsspec; files written for others
    http        files of web servers, over lines that break; files of a crawl by its list, records by its index
    running     processes started for a workspace, recorded where no writer of the workspace reaches, and where they
                serve it
    off_limits  keys, credentials and private folders, which no source may lead to
    files       files of a source, read once and compared with the inventory; SHA-256 of files and pieces, remembered
                while a file does not change
    listing     the files at a location: names, digests, marks of change
    atomic      names that others have written, as paths below their folder; files that are verified: no link or pipe,
                read once; write to a temporary name, flush, rename; a full disk is a named error; locks
    objects     small named objects with conditional writes, as files of a folder or in S3; blobs in S3 with checked
                uploads
    workspace   the folder, or the prefix with a folder on each machine, that holds all state, and its layout
    store       content store in DVC's `files/md5` layout: put, open, verify, once on a machine
    blob_cache  blobs of a remote, read in spans or fetched into a bounded cache that the processes of a machine share
    shared_store  the content store of a shared workspace: a bucket behind such a cache
    state       a workspace, opened: its store, the step cache (key -> parts, written last), manifests by digest,
                published manifests, checkouts
    dvc         pointers for plain `dvc pull`, restore, push and pull; the one module on dvc-data
    parts       tables to and from Parquet blobs in the store; schemas of documents, rejects and edits
    seal        whether one of the workspace's own workers wrote a reference or step record
    tensor_file tensors in the safetensors layout, written and hashed in one pass
    boundaries  strike a process at the k-th change that it makes to a file system, for crash tests and game days

Does not belong here: the meaning of the bytes.
"""
