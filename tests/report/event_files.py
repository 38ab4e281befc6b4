"""TensorBoard's event files, read by TensorFlow, which checks their checksums."""

from collections import defaultdict

import tensorflow as tf
from tensorflow.core.util import event_pb2


def events_of(path):
    """Return the events of a file."""
    return [event_pb2.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]


def scalars_of(folder):
    """Return the scalars of a folder by tag, as a reader of TensorBoard keeps them: lists of step and value."""
    found = defaultdict(list)
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in events_of(path):
            if event.HasField("session_log") and event.session_log.status == event_pb2.SessionLog.START:
                for tag, points in found.items():
                    found[tag] = [point for point in points if point[0] < event.step]
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found[value.tag].append((event.step, value.simple_value))
    return dict(found)
