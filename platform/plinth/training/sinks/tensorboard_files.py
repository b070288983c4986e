"""Event files of TensorBoard, by its own writer.

A step that comes again replaces the one before: a restart mark (`SessionLog.START`) at a step tells TensorBoard that
all from that step on is out of date.
"""

from __future__ import annotations

import time
from pathlib import Path

from plinth.training.sinks.relay import SinkRow


class TensorBoardFiles:
    """`tensorboard --logdir FOLDER` shows it."""

    def __init__(self, logdir: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(logdir))

    def go_back(self, step: int) -> None:
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, session_log=start))

    def write(self, row: SinkRow) -> None:
        values = [self._summary.Summary.Value(tag=tag, simple_value=value) for tag, value in row.values.items()]
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=row.time, step=row.step, summary=summary))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
