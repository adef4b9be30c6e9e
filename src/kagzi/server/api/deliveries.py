"""A claimed run cut to frames: a long history travels in several deliveries, the first with everything else."""

from __future__ import annotations

from collections.abc import Iterator

from kagzi.protocol.v1.worker_pb2 import Delivery


def chunks(delivery: Delivery, most_bytes: int) -> Iterator[Delivery]:
    """The delivery itself when it is small; otherwise its parts, each but the last with `more`. A step that is larger
    than a frame travels alone.
    """
    if not delivery.history or delivery.ByteSize() <= most_bytes:
        yield delivery
        return
    steps = list(delivery.history)
    del delivery.history[:]
    part = delivery
    size = part.ByteSize()
    for step in steps:
        step_size = step.ByteSize()
        if size + step_size > most_bytes and (part.history or part is delivery):
            part.more = True
            yield part
            part = Delivery(run_id=delivery.run_id, claim_token=delivery.claim_token)
            size = 0
        part.history.append(step)
        size += step_size
    yield part
