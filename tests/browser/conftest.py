"""The tiny pipeline up to its evaluation, which the tests of jobs use too, and results for pages without one."""

from tests.jobs.conftest import corpus, trained
from tests.plinth.experiment.test_page import shown
from tests.plinth.report.conftest import data, funnel, mixture, run, slices
from tests.plinth.report.run.test_run_page import timeline

__all__ = ["corpus", "data", "funnel", "mixture", "run", "shown", "slices", "timeline", "trained"]
