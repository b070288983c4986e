"""Results as pages and plots. Matplotlib draws all figures: SVG for self-contained pages, and PNG for Dagster.

    style         palette, sizes, numbers in words; a figure as PNG or as SVG that follows the theme of its page
    figures       funnel, mixture, loss, bits per byte, rates of learned gates, probes
    sankey        the funnel as a Sankey diagram: documents that remain, and the reasons for removal
    page          `page(data) -> str`, the page of results; the data card: text by bucket, and screenings of the text;
                  the index page of a workspace: state, runs, links to all pages
    evaluation    the page of an evaluation: its contents as records, and HTML; the page that compares two models

The page of one training run shows metrics, events and cost over one axis.

    run_metrics   the timeline as columns over one axis, and the cost of the run: pure functions of events
    run_panels    series, shares and layers as panels over one axis, drawn by matplotlib
    run_sections  interventions of the guard, parts of a step, probes, sections that packages add; number formatting
    run_page      `page(events, about) -> str`; a script in the page shows the values at the pointer

Code that reads manifests, runs or registries does not belong here. Only `run_page` reads a run.
"""
