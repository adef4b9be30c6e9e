"""The one error of the room: something that was written does not say when.

It carries the name of what was wrong, so that an RPC can blame the right field, and where there is one the nearest
writing that works. Its message holds both, and is meant for the person who wrote it.
"""


class TimetableError(ValueError):
    """A cron expression, an interval, a time zone or a phrase that does not say when."""

    def __init__(self, field: str, reason: str, suggestion: str | None = None) -> None:
        self.field = field
        self.reason = reason
        self.suggestion = suggestion
        super().__init__(reason if suggestion is None else f"{reason}; try {suggestion!r}")

    def __reduce__(self) -> tuple[type["TimetableError"], tuple[str, str, str | None]]:
        return TimetableError, (self.field, self.reason, self.suggestion)


def shown(text: object) -> str:
    """What was written, short enough for a message."""
    written = repr(text)
    return written if len(written) <= 80 else f"{written[:77]}..."
