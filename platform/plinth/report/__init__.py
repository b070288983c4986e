"""Results as pages and plots. One drawing library, matplotlib: SVG inside pages that load nothing, PNG for Dagster.

    style         palette, sizes, numbers in words; a figure as PNG or as SVG that follows the theme of its page
    figures       funnel, mixture, loss, bits per byte, rates of learned gates, probes
    sankey        the funnel as one stream with the reasons that leave it
    page          `page(data) -> str`, the page of results; the data card: text by bucket, and what it was screened for;
                  the index of all pages: state on one screen, runs, links
    release_pages the impact of an artifact, as a graph and as lists; a canary's trial: every stream next to the
                  champion, what was taken in, what decides
    evaluation    the page of an evaluation: its contents as records, and HTML; the page of two models side by side

The page of one training run shows what happened, why, and what it cost, over one axis.

    run_metrics   the timeline as columns over one axis, and the cost of the run: pure functions of events
    run_panels    series, shares and layers as panels over one axis, drawn by matplotlib
    run_sections  interventions of the guard, parts of a step, probes, sections that packages add; numbers as text
    run_page      `page(events, about) -> str`; a script of the page reads values out at the pointer

Does not belong here: reading manifests, runs or registries (but `run_page`, which reads one run).
"""
