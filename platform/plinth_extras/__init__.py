"""The ring: training and serving next to the main path. Found through entry points; nothing of the core imports it.

    federated/     rounds of sites that share weights and no text: a training hook, the coordinator and its command
    privacy/       differentially private training: a training hook, its accountant and its key
    distillation/  a run that learns from a teacher: a training hook, and the asset of stored logits
    compressed/    quantized and pruned forms of a release: files and export
    roofline/      the bottleneck of a run's steps: section of its page, command
    proxies/       product proxies: generated items, checked by code
"""
