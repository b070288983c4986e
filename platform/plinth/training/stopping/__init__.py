"""When a run has had enough.

parameters  When a run has had enough. A rule that is not set is not asked.
signals     What the stopping rules look at, gathered from the timeline.
stopping    When a run has had enough: a pure function from what its timeline tells to a verdict with every signal
"""
