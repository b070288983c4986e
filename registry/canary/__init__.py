"""The trial of a canary: it is compared with the champion, document by document and request by request.

    judgement       streams of paired values -> give back, go on, may become champion; pure
    measured_pairs  values of both on held-out text and probes, out of what the evaluator has signed for
    prometheus      values of an expression over time, from Prometheus's HTTP API
    feeds           pairs out of the owner's metrics: lines of JSON, or two queries; rejects are counted
    journal         what was taken in of the feeds, kept between ticks
    observation     the canary that stands, everything that was observed of it, and what decides next

Does not belong here: moving a version (`registry.promotion`).
"""

from registry.canary.judgement import PairedStream, StreamTrial, Trial, judge
from registry.canary.observation import CanaryStatus, observe

__all__ = ["CanaryStatus", "PairedStream", "StreamTrial", "Trial", "judge", "observe"]
