"""Results as pages and plots. One drawing library, matplotlib: SVG inside pages that load nothing, PNG for Dagster.

    style         palette, sizes, numbers in words; a figure as PNG or as SVG that follows the theme of its page
    figures       funnel, mixture, loss, bits per byte, rates of learned gates, probes
    sankey        the funnel as one stream with the reasons that leave it
    data_card     the data card: text by bucket, and what it was screened for
    page          `page(data) -> str`, the page of results
    impact_page   what came of something, as a graph and as lists
    trial_page    the page of a canary's trial: every stream beside the champion, what was taken in, what decides;
                  loads nothing
    comparison    the page of two models side by side
    evaluation    the page of an evaluation: its contents as records, and HTML
    workspace_index  the index of all pages: state on one screen, runs, links
    run/          the page of one training run

Does not belong here: reading manifests, runs or registries (but `run.run_page`, which reads one run).
"""
