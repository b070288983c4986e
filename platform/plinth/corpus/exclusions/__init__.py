"""The exclusion list: documents that were taken down, and stay out of every later snapshot.

    addresses       normal forms of addresses, domains and licences
    signatures      a text as digest and shingle hashes: found again without keeping it
    entries         one exclusion: rule, signatures, person, reason
    exclusion_list  the signed chain of them in the workspace
    rules           all exclusions, ready for look-up in columns and in texts
    drop            documents of a bucket without those that a rule takes; they become rejects

Does not belong here: finding what holds a document, and the report (`plinth corpus takedown`).
"""
