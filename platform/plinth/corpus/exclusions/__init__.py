"""The exclusion list: documents that were taken down, and stay out of every later snapshot.

    addresses       normal forms of addresses, domains and licences
    exclusion_list  the signed list; one exclusion: a rule on origins, or signatures of texts, with person, time and
                    reason
    rules           all exclusions, ready for look-up

Does not belong here: finding what holds a document, and the report (`plinth corpus takedown`).
"""
