"""What every asset is made with: stages as data, their Dagster assets, suites and metadata.

build         A stage as a Dagster asset: resolve inputs once, make, check, publish, present.
expectations  Great Expectations suites on statistics tables, never on documents.
inputs        Picking inputs by bucket, and who owns what belongs to no single bucket.
present       Manifests as metadata that people look at. Small: the event log is not a data store.
resources     The workspace and its workers as a Dagster resource: set up once per run, shared by its steps.
stage         A stage of the line as data: one record from which the Dagster asset, the up-to-date check and the
"""
