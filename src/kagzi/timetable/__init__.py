"""When things are due: cron, anchored intervals and human language, in any time zone."""

from kagzi.timetable.errors import TimetableError
from kagzi.timetable.text import read_text
from kagzi.timetable.timetable import Timetable, read_cron, read_interval

__all__ = ["Timetable", "TimetableError", "read_cron", "read_interval", "read_text"]
