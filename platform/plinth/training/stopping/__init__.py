"""Rules that end a run early.

    line        a straight line through points, with its error
    stopping    a pure function from rules and signals to a verdict; the last step of a run that was stopped
"""
