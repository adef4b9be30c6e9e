"""What the server of an environment logs goes where the test's own logs go. A program that has set up structlog itself
is left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog
from structlog.typing import Processor


@contextlib.contextmanager
def routed() -> Iterator[None]:
    """Sends structlog to the standard library's logging while the block lasts, unless it was told otherwise."""
    if structlog.is_configured():
        yield
        return
    processors: list[Processor] = [
        structlog.stdlib.filter_by_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        # Somebody may have set it up meanwhile.
        if structlog.get_config()["processors"] is processors:
            structlog.reset_defaults()
