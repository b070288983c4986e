"""Rules that end a run early.

    parameters  the rules as a recipe sets them
    signals     tokens, seconds, losses and scores, gathered from the timeline
    stopping    a pure function from rules and signals to a verdict; the last step of a run that was stopped
"""
