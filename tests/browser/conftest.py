"""The tiny pipeline up to its candidate, which the tests of jobs use too, and results for pages without one."""

from tests.jobs.conftest import pending
from tests.plinth.report.conftest import data, funnel, mixture, run, slices
from tests.plinth.report.run.test_run_page import timeline
from tests.plinth_lab.experiments.test_page import shown

__all__ = ["data", "funnel", "mixture", "pending", "run", "shown", "slices", "timeline"]
