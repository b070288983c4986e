"""The effect of another policy, from stored columns.

whatif  buckets judged again and compared with the published verdicts; samples of documents that change sides
count   the task: one part judged again, counted
read    columns of one part beside its published verdicts, and no text
"""
