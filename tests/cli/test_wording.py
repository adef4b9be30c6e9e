"""What the client says of an error is said to the shell with options and commands, and says what to do."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kagzi.cli.wording import spoken
from kagzi.sdk import option, schedule_request
from kagzi.sdk.errors import (
    ConfigError,
    Conflict,
    InvalidArgument,
    KagziError,
    NotFound,
    RunCancelled,
    RunFailed,
    Unauthorized,
    Unavailable,
)
from kagzi.sdk.failure import ErrorInfo

RUN = "01a1e040-f58c-768c-a9b4-b6ab6d674c04"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RunFailed(RUN, ErrorInfo("ValueError", "no")), f"`kagzi runs retry {RUN}` tries again"),
        (RunCancelled(RUN, "enough"), f"`kagzi runs retry {RUN}` goes on"),
        (NotFound("there is no run 'x'", subject="x", field="run_id"), "there is no run 'x'. Check the name and"),
        (Unauthorized("no key"), "no key. Set KAGZI_API_KEY to a key"),
        (Unavailable("nobody", retry_after=timedelta(seconds=1)), "nobody. Check that the server (--url)"),
        (InvalidArgument("must be 0 to 4, got 9", field="priority"), "priority: must be 0 to 4, got 9."),
        (InvalidArgument("'x' is no cron expression", field="timing.cron"), "'x' is no cron expression."),
        (Conflict("there is one already: choose another id", subject="s"), "there is one already: choose another id."),
        (ConfigError("overlap='x' must be one of 'allow', 'skip'."), "--overlap 'x' must be one of"),
        (ConfigError("max_catchup=-1 must be a whole number."), "--max-catchup -1 must be"),
        (ConfigError("labels={'a': 1} must be a mapping."), "--label {'a': 1} must be"),
        (
            ConfigError("leave it to Worker(queue='x'), or @workflow(queue=...)."),
            "Worker(queue='x'), or @workflow(queue=.",
        ),
        (ConfigError("after a `delay` or `at` a time: one of them"), "after a --delay or --at a time"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, KagziError) else "",
)
def test_an_error_is_told_in_the_words_of_the_shell(error: KagziError, said: str) -> None:
    assert said in spoken(error)
    assert "handle." not in spoken(error)
    assert "(field" not in spoken(error)


def test_a_length_of_time_and_a_missing_one_are_told_so() -> None:
    with pytest.raises(ConfigError) as wrong:
        option.length("soon", "since")
    assert spoken(wrong.value).startswith("--since 'soon' is not a duration: ")
    assert "timedelta" not in spoken(wrong.value)
    with pytest.raises(ConfigError) as missing:
        schedule_request.proposal({})
    assert spoken(missing.value) == "A schedule is due by --cron, --every or --text, one of them; given none."
