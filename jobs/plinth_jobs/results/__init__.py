"""Pages of results, `reports/<recipe>-candidate-<version>.html`: one page per candidate, checkpoint or corpus.

subject   what a page is about, and the manifests of that alone
page      write the page of a subject, and renew those whose release state has changed
"""

from plinth_jobs.results.page import current, renew, write

__all__ = ["current", "renew", "write"]
