"""Every exception users meet, and the few they raise or return themselves.

    KagziError                    all that Kagzi raises
    ├── ServerError               the server said no
    │   ├── NotFound              no such run, step, schedule, namespace ...
    │   ├── Conflict              it exists already, or changed in between
    │   ├── InvalidArgument       the request can never succeed as it is
    │   ├── PreconditionFailed    not in the state that the request needs
    │   ├── Unauthorized          no key, a wrong key, or another namespace's
    │   └── Unavailable           nobody answered, or there is too much to do
    ├── RunFailed                 the awaited run ended FAILED
    ├── RunCancelled              the awaited run ended CANCELLED
    ├── StepFailed                a step used up its tries; raised in the workflow
    ├── NondeterminismError       the code no longer asks for what was recorded
    ├── PayloadError              a value has no encoded form, or data no such value
    ├── LimitExceeded             a run asked for more steps, or larger results, than are kept
    └── ConfigError               a setting or an argument is wrong (a ValueError too)

    raised by user code           NonRetryable, RetryAfter, NotApplied; automations: Transient, NeedsAttention
    returned by reconcilers       Applied, Absent, Unclear

What user code raises stands outside the tree, so that `except KagziError` catches what Kagzi says, not what
the code around it says. Errors of other processes come as text, never as the original object. Nothing here
knows gRPC: one place elsewhere maps codes to these classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any, ClassVar

from kagzi.sdk import duration
from kagzi.sdk.duration import Duration
from kagzi.sdk.failure import ErrorInfo

__all__ = [
    "Absent",
    "Applied",
    "ConfigError",
    "Conflict",
    "ErrorInfo",
    "InvalidArgument",
    "KagziError",
    "LimitExceeded",
    "NeedsAttention",
    "NonRetryable",
    "NondeterminismError",
    "NotApplied",
    "NotFound",
    "PayloadError",
    "PreconditionFailed",
    "RetryAfter",
    "RunCancelled",
    "RunFailed",
    "ServerError",
    "StepFailed",
    "Transient",
    "Unauthorized",
    "Unavailable",
    "Unclear",
    "reconciliation",
    "retryable",
]


class KagziError(Exception):
    """All that Kagzi raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors take more than the message, so the default way of copying and pickling would fail.
        return _revive, (type(self), self.args, self.__dict__.copy())


class ServerError(KagziError):
    """The server refused a request; `code` says why, `subject` and `field` what it was about."""

    default_code: ClassVar[str] = "INTERNAL"
    advice: ClassVar[str] = "The server's log tells more."

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        subject: str = "",
        field: str = "",
        retry_after: timedelta | None = None,
    ) -> None:
        about = "".join(f" ({label} {text})" for label, text in (("subject", subject), ("field", field)) if text)
        self.code = code or self.default_code
        super().__init__(f"{message.rstrip('.') or self.code}{about}. {self.advice}")
        self.message = message
        self.subject = subject
        self.field = field
        self.retry_after = retry_after


class NotFound(ServerError):
    default_code = "NOT_FOUND"
    advice = "Check the id and the client's namespace; retention may have removed it."


class Conflict(ServerError):
    default_code = "CONFLICT"
    advice = "Read its present state, then decide whether to ask again."


class InvalidArgument(ServerError):
    default_code = "INVALID_ARGUMENT"
    advice = "Correct the request; repeating it as it is cannot succeed."


class PreconditionFailed(ServerError):
    default_code = "PRECONDITION_FAILED"
    advice = "Bring it into the state that the request needs, then ask again."


class Unauthorized(ServerError):
    default_code = "UNAUTHORIZED"
    advice = "Give the client an api_key (KAGZI_API_KEY) of this namespace whose role allows the call."


class Unavailable(ServerError):
    default_code = "UNAVAILABLE"
    advice = "Ask again after `retry_after`, or in a moment; check that the server and its database are up."


class RunFailed(KagziError):
    """The run ended FAILED. `type`, `message` and `traceback` tell of the error that left the workflow."""

    def __init__(self, run_id: str, error: ErrorInfo) -> None:
        super().__init__(
            f"Run {run_id} failed with {str(error).rstrip('. ')}. `handle.retry()` tries again from where it failed."
        )
        self.run_id = run_id
        self.type = error.type
        self.message = error.message
        self.traceback = error.traceback
        _attach(self, "run", error)


class RunCancelled(KagziError):
    """The run ended CANCELLED."""

    def __init__(self, run_id: str, reason: str = "") -> None:
        because = f" ({reason})" if reason else ""
        super().__init__(f"Run {run_id} was cancelled{because}. `handle.retry()` goes on where it stopped.")
        self.run_id = run_id
        self.reason = reason


class StepFailed(KagziError):
    """A step failed for good. `type`, `message` and `traceback` tell of the error of its last attempt."""

    def __init__(self, step: str, error: ErrorInfo, attempts: int = 1) -> None:
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"Step {step!r} failed after {tries} with {error}")
        self.step = step
        self.attempts = attempts
        self.type = error.type
        self.message = error.message
        self.traceback = error.traceback
        _attach(self, "step", error)


class NondeterminismError(KagziError):
    """The code asks for other steps than were recorded; `recorded` and `requested` hold both lists."""

    def __init__(self, message: str, *, recorded: Sequence[str] = (), requested: Sequence[str] = ()) -> None:
        width = max((len(line) for line in ("recorded", *recorded)), default=0)
        rows = [("recorded", "requested"), *zip_longest(recorded, requested, fillvalue="-")]
        table = "".join(
            f"\n  {' ' if index == 0 or left == right else '!'} {left:<{width}}  {right}"
            for index, (left, right) in enumerate(rows)
        )
        super().__init__(
            f"{message.rstrip('.')}. Restore the old order of steps, or let only new runs take the new path "
            f"with `if ctx.patched(...)`.{table if recorded or requested else ''}"
        )
        self.recorded = tuple(recorded)
        self.requested = tuple(requested)


class PayloadError(KagziError):
    """A value cannot be encoded, or data not decoded: `type` names the type, `path` the place within it."""

    def __init__(self, message: str, *, type: str = "", path: str = "") -> None:
        super().__init__(message)
        self.type = type
        self.path = path


class LimitExceeded(KagziError):
    """A run asked for more than is kept of one; trying again would come no further."""


class ConfigError(KagziError, ValueError):
    """A setting, an option or an argument is wrong; the message names it and what is accepted."""


class NonRetryable(Exception):
    """Raised by a step: trying again cannot help, the step fails now."""


class RetryAfter(Exception):
    """Raised by a step: try again after `delay`, whatever the retry policy says of waiting."""

    def __init__(self, delay: Duration, message: str = "") -> None:
        super().__init__(delay, message)
        self.delay = duration.named(delay, "delay")
        self.message = message

    def __str__(self) -> str:
        return self.message or f"try again in {duration.format(self.delay)}"


class NotApplied(Exception):
    """Raised by an effect or a mutation: it certainly changed nothing outside, so it may be tried again."""


class Transient(Exception):
    """Raised by a handler of an automation: it is no defect and may pass, try again after the backoff."""


class NeedsAttention(Exception):
    """Raised by a handler of an automation: only a person can help (a login, a permission). It blocks."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A reconciler's answer: the effect happened, with this result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Absent:
    """A reconciler's answer: the effect did not happen and will not."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """A reconciler's answer: it cannot be told now, ask again later."""


def reconciliation(answer: object) -> Applied | Absent | Unclear:
    """What a reconciler returned, also when it forgot the parentheses. ConfigError for anything else."""
    if isinstance(answer, Applied | Absent | Unclear):
        return answer
    if answer is Absent:
        return Absent()
    if answer is Unclear:
        return Unclear()
    raise ConfigError(
        f"A reconciler must return Applied(result), Absent() or Unclear(), not {type(answer).__name__}: "
        "the outcome stays unknown."
    )


def retryable(error: BaseException) -> bool:
    """False for errors that the same code with the same input raises again."""
    return not isinstance(error, NonRetryable | PayloadError | ConfigError | LimitExceeded | NondeterminismError)


def _attach(error: KagziError, where: str, info: ErrorInfo) -> None:
    # A note is printed with the exception: the log of one side shows where it went wrong on the other.
    if info.traceback:
        error.add_note(f"In the {where}:\n{info.traceback.rstrip()}")


def _revive(cls: type[KagziError], args: tuple[Any, ...], state: dict[str, Any]) -> KagziError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error
