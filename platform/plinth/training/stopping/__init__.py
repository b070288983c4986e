"""Rules that end a run early.

    signals     tokens, seconds, losses and scores, gathered from the timeline
    line        a straight line through points, with its error
    rule_state  how one rule stands
    probes      what probes say: a regression, and improvement that forbids to call a run flat
    stopping    a pure function from rules and signals to a verdict; the last step of a run that was stopped
"""
