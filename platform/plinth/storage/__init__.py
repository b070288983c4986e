"""Storage: the only package that reads and writes stored bytes.

    uris        locations: `file://`, `s3://`, `https://`, `cc://`, `hf://`, through fsspec; exported files
    http        files of web servers, with retries; files of a crawl from its file list, records from its index
    running     processes started for a workspace, recorded where other writers of the workspace cannot change them; the
                addresses of its servers
    off_limits  keys, credentials and private folders, excluded from all sources
    files       files of a source, read once and compared with the inventory; cached SHA-256 of files and pieces
                that have not changed
    listing     the files at a location: names, digests, change marks
    atomic      untrusted names as paths below their folder; reading of plain files only; atomic writes (temporary
                name, flush, rename); named errors for a full disk; locks
    objects     small named objects with conditional writes, as files of a folder or in S3; blobs in S3 with checked
                uploads
    workspace   the folder (or the bucket prefix, with a folder on each machine) that contains all state, and its layout
    store       content store in DVC's `files/md5` layout: put and open blobs, verify each blob once per machine
    blob_cache  blobs of a remote, read in spans or fetched into a bounded cache that the processes of a machine share
    shared_store  the content store of a shared workspace: a bucket behind a cache of this kind
    state       an open workspace: its store, the step cache (key -> parts, written last), manifests by digest,
                published manifests, checkouts
    dvc         pointers for plain `dvc pull`, and restore; the only module that uses dvc-data
    parts       tables to and from Parquet blobs in the store; schemas of documents, rejects and edits
    arrow_datasets  parts of a manifest as a read-only Arrow dataset
    seal        authentication of references and step records by the workspace's own workers
    tensor_file tensors in the safetensors layout, written and hashed in one pass
    boundaries  kill a process at its k-th file system change, for crash tests and game days

Code that interprets the stored bytes does not belong here.
"""
