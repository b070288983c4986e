"""The effect of another policy, from stored columns.

count   One part judged again by another policy: counts, and the rows that could become samples.
read    What a trial of a policy reads of one part: columns of its sidecars beside what is published, and no text.
whatif  What another policy would change, from stored columns; no text is read but that of the samples.
"""
