"""What the store refuses, as one exception that carries the contract's ErrorDetail.

StoreError
├── Refused        the request cannot take effect; `detail` says why and nothing was written
└── Unreachable    the database did not answer in time; the request may be sent again
"""

from __future__ import annotations

from kagzi.protocol.v1.common_pb2 import ErrorDetail


class StoreError(Exception):
    """Something the store could not do."""


class Refused(StoreError):
    """The request cannot take effect; nothing was written."""

    def __init__(self, detail: ErrorDetail) -> None:
        super().__init__(detail.message)
        self.detail = detail


class Unreachable(StoreError):
    """The database did not answer in time."""


def invalid(field: str, message: str, subject: str = "") -> Refused:
    """A field of the request is to blame."""
    return Refused(ErrorDetail(code=ErrorDetail.INVALID_ARGUMENT, message=message, subject=subject, field=field))


def not_found(what: str, subject: str, field: str = "") -> Refused:
    """`what` does not exist."""
    message = f"there is no {what} {subject!r}"
    return Refused(ErrorDetail(code=ErrorDetail.NOT_FOUND, message=message, subject=subject, field=field))


def conflict(message: str, subject: str, field: str = "") -> Refused:
    """Something with this id exists already."""
    return Refused(ErrorDetail(code=ErrorDetail.CONFLICT, message=message, subject=subject, field=field))


def precondition(message: str, subject: str, field: str = "") -> Refused:
    """The subject is in a state that does not allow this."""
    return Refused(ErrorDetail(code=ErrorDetail.PRECONDITION_FAILED, message=message, subject=subject, field=field))


def lease_lost(run_id: str) -> ErrorDetail:
    """The answer to every write whose token is not the run's current one."""
    message = f"run {run_id} is not held by this token: stop it and write nothing more"
    return ErrorDetail(code=ErrorDetail.LEASE_LOST, message=message, subject=run_id)


def predecessor_refused(run_id: str) -> ErrorDetail:
    """The answer to what follows a refused operation of the same run and token."""
    message = f"an earlier operation of run {run_id} was refused, so this one was not looked at"
    return ErrorDetail(code=ErrorDetail.PREDECESSOR_REFUSED, message=message, subject=run_id)
