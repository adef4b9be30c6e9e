"""The exceptions: their tree, what they carry, and what is kept of a foreign one."""

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest

from kagzi.sdk import errors, failure
from kagzi.sdk.errors import ErrorInfo

SERVER_ERRORS = [
    errors.NotFound,
    errors.Conflict,
    errors.InvalidArgument,
    errors.PreconditionFailed,
    errors.Unauthorized,
    errors.Unavailable,
]
EXAMPLES: list[errors.KagziError] = [
    *(cls("no", subject="run 7", field="id", retry_after=timedelta(seconds=2)) for cls in SERVER_ERRORS),
    errors.ServerError("no", code="LEASE_LOST"),
    errors.RunFailed("run-7", ErrorInfo("ValueError", "bad card", "Traceback ...")),
    errors.RunCancelled("run-7", "asked for"),
    errors.StepFailed("charge", ErrorInfo("ValueError", "bad card", "Traceback ..."), attempts=3),
    errors.NondeterminismError("step 2 differs", recorded=["charge", "ship"], requested=["charge", "label"]),
    errors.PayloadError("no", type="socket", path="$.a"),
    errors.ConfigError("no"),
]


def raised(error: Exception) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, it is returned
        raise error
    return caught.value


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_all_that_kagzi_raises_is_a_kagzi_error(error: errors.KagziError) -> None:
    assert isinstance(error, errors.KagziError)
    assert isinstance(error, errors.ServerError) == (type(error) in [*SERVER_ERRORS, errors.ServerError])


@pytest.mark.parametrize(
    "cls", [errors.NonRetryable, errors.RetryAfter, errors.NotApplied, errors.Transient, errors.NeedsAttention]
)
def test_what_user_code_raises_is_not_caught_as_a_kagzi_error(cls: type[Exception]) -> None:
    assert not issubclass(cls, errors.KagziError)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_copying_and_pickling_with_everything_they_carry(error: errors.KagziError) -> None:
    for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert twin.__dict__ == error.__dict__


def test_a_server_error_carries_its_detail_and_tells_what_to_do() -> None:
    error = errors.NotFound("There is no such run.", subject="run 7", field="run_id")
    assert (error.code, error.message, error.subject, error.field) == (
        "NOT_FOUND",
        "There is no such run.",
        "run 7",
        "run_id",
    )
    assert error.retry_after is None
    assert str(error) == (
        "There is no such run (subject run 7) (field run_id). "
        "Check the id and the client's namespace; retention may have removed it."
    )


def test_a_code_of_the_servers_own_is_kept() -> None:
    assert errors.Conflict("lost", code="LEASE_LOST").code == "LEASE_LOST"
    assert errors.Conflict("lost").code == "CONFLICT"


def test_run_failed_tells_the_type_the_message_and_the_traceback_of_the_other_side() -> None:
    error = errors.RunFailed("run-7", ErrorInfo("CardDeclined", "no money", "File x, line 1"))
    assert (error.run_id, error.type, error.message, error.traceback) == (
        "run-7",
        "CardDeclined",
        "no money",
        "File x, line 1",
    )
    assert "run-7 failed with CardDeclined: no money" in str(error)
    assert "File x, line 1" in ErrorInfo.from_exception(raised(error)).traceback


def test_step_failed_names_the_step_and_its_attempts_and_holds_no_original() -> None:
    error = errors.StepFailed("charge#2", ErrorInfo("ValueError", "bad"), attempts=3)
    assert (error.step, error.attempts, error.type, error.message) == ("charge#2", 3, "ValueError", "bad")
    assert str(error) == "Step 'charge#2' failed after 3 attempts with ValueError: bad"
    assert error.__cause__ is None


def test_nondeterminism_shows_both_lists_side_by_side() -> None:
    error = errors.NondeterminismError("it differs", recorded=["charge", "ship"], requested=["charge", "label", "x"])
    assert error.recorded == ("charge", "ship")
    lines = str(error).splitlines()
    assert "ctx.patched" in lines[0]
    assert [line.split() for line in lines[1:]] == [
        ["recorded", "requested"],
        ["charge", "charge"],
        ["!", "ship", "label"],
        ["!", "-", "x"],
    ]


def test_a_config_error_is_also_a_value_error() -> None:
    assert issubclass(errors.ConfigError, ValueError)


def test_retry_after_takes_any_duration() -> None:
    assert errors.RetryAfter("1m30s").delay == timedelta(seconds=90)
    assert str(errors.RetryAfter(90)) == "try again in 1m30s"
    assert str(errors.RetryAfter(90, "rate limit")) == "rate limit"
    assert pickle.loads(pickle.dumps(errors.RetryAfter(2, "x"))).delay == timedelta(seconds=2)  # noqa: S301 - our own
    with pytest.raises(errors.ConfigError):
        errors.RetryAfter(-1)


def test_only_what_would_fail_again_the_same_way_is_not_retryable() -> None:
    class Stolen(errors.NonRetryable):
        pass

    for error in (Stolen(), errors.PayloadError("x"), errors.ConfigError("x"), errors.NondeterminismError("x")):
        assert not errors.retryable(error)
    for other in (ValueError(), errors.RetryAfter(1), errors.Unavailable("x"), errors.NotApplied(), TimeoutError()):
        assert errors.retryable(other)


def test_a_reconciler_may_forget_the_parentheses_but_not_return_something_else() -> None:
    assert errors.reconciliation(errors.Applied(5)) == errors.Applied(5)
    assert errors.reconciliation(errors.Absent) == errors.Absent()
    assert errors.reconciliation(errors.Unclear()) == errors.Unclear()
    for answer in (None, True, errors.Applied, "absent"):
        with pytest.raises(errors.ConfigError, match="must return Applied"):
            errors.reconciliation(answer)


def test_an_exception_is_described_by_type_message_and_traceback() -> None:
    info = ErrorInfo.from_exception(raised(ValueError("bad card")))
    assert (info.type, info.message, str(info)) == ("ValueError", "bad card", "ValueError: bad card")
    assert "test_errors.py" in info.traceback
    assert info.traceback.endswith("ValueError: bad card\n")


def test_causes_and_groups_are_in_the_traceback() -> None:
    group = ExceptionGroup("outer", [ValueError("one"), TypeError("two")])
    group.__cause__ = raised(KeyError("inner"))
    text = ErrorInfo.from_exception(raised(group)).traceback
    for expected in ("KeyError: 'inner'", "ValueError: one", "TypeError: two"):
        assert expected in text


def test_the_message_of_a_group_tells_what_is_in_it() -> None:
    inner = ExceptionGroup("inner", [KeyError("two"), TimeoutError()])
    info = ErrorInfo.from_exception(ExceptionGroup("outer", [ValueError("one"), inner]))
    assert info.message == (
        "outer (2 sub-exceptions): ValueError: one; ExceptionGroup: inner (2 sub-exceptions): KeyError: 'two'; "
        "TimeoutError"
    )


def test_kagzis_own_frames_are_left_out_unless_there_are_no_others() -> None:
    def bad(_: Any) -> None:
        raise ValueError("mine")

    own = str(failure.__file__)
    code = compile("def call(f): f(1)", own, "exec")
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # noqa: S102 - a frame in a file of Kagzi's
    with pytest.raises(ValueError, match="mine") as users:
        namespace["call"](bad)
    text = ErrorInfo.from_exception(users.value).traceback
    assert own not in text
    assert "in bad" in text
    with pytest.raises(errors.ConfigError) as ours:
        errors.reconciliation(None)
    assert users.value.__traceback__ is not None
    assert ours.value.__traceback__ is not None
    only_ours = ours.value.with_traceback(ours.value.__traceback__.tb_next)
    assert "in reconciliation" in ErrorInfo.from_exception(only_ours).traceback


def test_text_that_postgresql_cannot_store_is_cleaned() -> None:
    info = ErrorInfo.from_exception(raised(ValueError("nul \0, half \ud83d, whole \U0001f600")))
    assert info.message == "nul \ufffd, half \ufffd, whole \U0001f600"
    for text in (info.message, info.traceback):
        assert "\0" not in text
        text.encode()


def test_a_long_message_and_a_long_traceback_are_cut_in_the_middle() -> None:
    info = ErrorInfo.from_exception(raised(ValueError("a" * 100_000 + "end")))
    assert len(info.message) <= failure.LONGEST_MESSAGE
    assert info.message.startswith("aaa")
    assert info.message.endswith("end")
    assert "characters left out" in info.message
    assert len(info.traceback) <= failure.LONGEST_TRACEBACK


def test_an_exception_that_cannot_be_printed_is_described_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    info = ErrorInfo.from_exception(raised(Mute()))
    assert info.type == "Mute"
    assert "could not be read" in info.message


def test_endless_recursion_is_described_within_bounds() -> None:
    def forever(n: int) -> int:
        return forever(n + 1) + 1

    with pytest.raises(RecursionError) as endless:
        forever(0)
    info = ErrorInfo.from_exception(endless.value)
    assert info.type == "RecursionError"
    assert len(info.traceback) <= failure.LONGEST_TRACEBACK
