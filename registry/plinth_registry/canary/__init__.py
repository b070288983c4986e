"""The trial of a canary: it is compared with the champion, document by document and request by request.

    judgement       streams of paired values -> give back, go on, may become champion; pure
    measured_pairs  values of both on held-out text and probes, out of what the evaluator has signed for
    feeds           pairs out of the owner's metrics: lines of JSON, or two queries; rejects are counted
    journal         what was taken in of the feeds, kept between ticks
    observation     the canary that stands, everything that was observed of it, and what decides next
    tick            one look of the sensor, and what follows from it

Does not belong here: how a version is moved (`plinth_registry.promotion`).
"""

from plinth_registry.canary.judgement import PairedStream, StreamTrial, Trial, judge
from plinth_registry.canary.observation import CanaryStatus, observe
from plinth_registry.canary.tick import CanaryTick, page_name, tick

__all__ = [
    "CanaryStatus",
    "CanaryTick",
    "PairedStream",
    "StreamTrial",
    "Trial",
    "judge",
    "observe",
    "page_name",
    "tick",
]
