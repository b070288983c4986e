"""Papers of a model: projections of signed evidence, byte for byte the same whenever they are made.

    facts             statements of papers, each with the digest of its evidence
    gather            the facts out of a verified provenance, the manifests it names, and attestations; text by domain
    cards             the model card and the data card in Markdown; the bill of materials, CycloneDX 1.6
    provider          what the provider states, signed; the European Union's public summary of training content
    signed            papers of a candidate or release, signed by compliance, and as they leave with an export
    command           `plinth release papers`, `plinth release provider`

No clock, no path, no recipe and no text but what a person signed enters a paper.
"""
