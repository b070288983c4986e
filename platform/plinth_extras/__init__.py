"""Optional training and serving features. Loaded through entry points; no core module imports this package.

    federated/     federated training of sites that share weights but no text: training hook, coordinator, command
    privacy/       differentially private training: a training hook, its accountant and its key
    distillation/  distillation from a teacher: training hook, and the asset of stored logits
    compressed/    quantized and pruned forms of a release: files and export
    roofline/      bottleneck of a run's steps: page section, command
    proxies/       product proxies: generated test items for product tasks, checked by code
    opentelemetry_export/  runs and assets as spans, metrics and log records, by OTLP
    openlineage_export/    events about publications for a lineage server
"""
