"""Commands about releases and provenance.

    content  `plinth restore` and `plinth export`: bytes out of the content store.
    explain  `plinth explain`: the whole story of one document.
    release  `plinth approve`, `promote`, `rollback`, `taint`: what people decide about models. Each is signed or reco
    verify   `plinth verify`: from a target back to its raw sources, or the first broken link.
"""
