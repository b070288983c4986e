"""Optional training and serving features, loaded through entry points. No core module imports this package.

    federated/     federated training of sites that share weights but no text: training hook, coordinator, command
    privacy/       differentially private training: a training hook, its accountant and its key
    distillation/  distillation from a teacher: training hook, and the asset of stored logits
    compressed/    quantized and pruned forms of a release: files and export
    corpus_page/   the corpus in a browser: lists, documents, labels, what-if thresholds
    interchange/   weights for other trainers (DCP, OLMo-core, Megatron): export formats and command
    mcp_server/    read-only tools for agents (Model Context Protocol): command
    roofline/      what limits the speed of a run's steps: a page section and a command
    proxies/       product proxies: generated test items for product tasks, checked by code
    opentelemetry_export/  runs and assets as spans, metrics and log records, by OTLP
    openlineage_export/    events about publications for a lineage server
    train_job/     launcher of Kubeflow TrainJobs
    skypilot/      launcher of SkyPilot managed jobs
"""
