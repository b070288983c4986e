"""Results as pages and plots. One drawing library, matplotlib: SVG inside pages that load nothing, PNG for Dagster.

    style         palette (safe for colour-blind readers), sizes, numbers in words
    render        a figure as PNG, or as SVG that follows the light and dark theme of its page
    figures       funnel, mixture, loss, bits per byte
    sankey        the funnel as one stream with the reasons that leave it
    mixture_plot  shares along a run; the largest streams by name
    probe_figure  signal and accuracy of probes, with intervals
    gate_figure   rates of a learned gate by slice
    data          contents of the page of results, as records that the caller fills from statistics
    data_card     the data card: text by bucket, and what it was screened for
    page          `page(data) -> str`, the page of results
    impact_figure what came of something, as a graph; impact_page is the page around it
    trial_page    the page of a canary's trial: every stream beside the champion, what was taken in, what decides;
                  loads nothing
    comparison    the page of two models side by side; comparison_figure draws its differences
    evaluation/   the page of an evaluation
    workspace_index  the index of all pages: state on one screen, runs, links
    run/          the page of one training run

Does not belong here: reading manifests, runs or registries (but `run.build`, which reads one run).
"""
