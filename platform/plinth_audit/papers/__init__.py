"""Papers of a model: projections of signed evidence, byte for byte the same whenever they are made.

    facts             statements of papers, each with the digest of its evidence
    gather            the facts out of a verified provenance, the manifests it names, and attestations; text by domain
    hub_card          front matter that the Hugging Face Hub reads
    cards             README.md: the Hub's model card with results; DATA_CARD.md: text, sources, terms, rules, domains
    bom               bom.cdx.json: CycloneDX bill of materials
    training_summary  TRAINING_SUMMARY.md: the European Union's summary of training content
    provider          the statement of a release's provider, signed: text that no evidence can say
    signed            papers of a candidate or release, signed by compliance, and as they leave with an export
    command           `plinth release papers`, `plinth release provider`

No clock, no path, no recipe and no text but what a person signed enters a paper.
"""
