"""Change of code in a run: the new code repeats the last steps of the old code before it continues the run.

    plinth run upgrade -> environment (an interpreter with the new code) -> the job stops and commits -> request
    supervisor of the new code -> its ranks replay the last committed steps -> comparison, signed with the next attempt

    record        the request, and the comparison as it is signed
    comparison    from the values of both to a verdict
    environment   an interpreter with the code of a commit

Both take the same steps from the same checkpoint on the machines of the run: the steps of the old code are those of the
run itself, whose commits are signed. If the verdict is a refusal, the job ends, and the old code can continue.
"""
