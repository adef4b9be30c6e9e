"""Errors as HTTP tells them: a problem document (RFC 9457) with the contract's code, subject and field, under the
status that fits. The one place that maps errors of calls to statuses. A defect is logged, and its reader told no more
than where to look.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from kagzi.dashboard.api.values import Misfit
from kagzi.sdk.errors import ServerError

MEDIA_TYPE = "application/problem+json"
STATUSES = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "CONFLICT": HTTPStatus.CONFLICT,
    "PRECONDITION_FAILED": HTTPStatus.CONFLICT,
    "UNAUTHORIZED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "LIMIT_EXCEEDED": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
}


class ProblemDocument(BaseModel):
    """What went wrong, and what to do."""

    title: str = Field(description="The status in words.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(description="What kind of refusal this is, as in the contract.")
    detail: str = Field(description="One sentence for a person, with what to do.")
    subject: str = Field("", description="What it is about: an id or name, as given.")
    field: str = Field("", description="The offending field of the request; empty when no single one is to blame.")
    retry_after_ms: int = Field(0, description="When trying again is sensible; 0 when it is not a question of time.")


class Problem(Exception):
    """An error on its way to a reader."""

    def __init__(self, code: str, detail: str, *, subject: str = "", field: str = "", retry_after_ms: int = 0) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.subject = subject
        self.field = field
        self.retry_after_ms = retry_after_ms

    @property
    def status(self) -> HTTPStatus:
        """The HTTP status that fits."""
        return STATUSES.get(self.code, HTTPStatus.INTERNAL_SERVER_ERROR)

    @classmethod
    def of(cls, error: ServerError) -> Problem:
        """What a server answered instead of doing as asked."""
        after = error.retry_after
        wait = 0 if after is None else math.ceil(after.total_seconds() * 1_000)
        return cls(error.code, error.message, subject=error.subject, field=error.field, retry_after_ms=wait)


def install(app: FastAPI) -> None:
    """Makes every error of the API a problem document."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(ServerError, _refused)
    app.add_exception_handler(Misfit, _misfit)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _plain)


def document(problem: Problem, status: HTTPStatus | None = None) -> JSONResponse:
    """The answer that tells of a problem."""
    status = status or problem.status
    told = ProblemDocument(
        title=status.phrase,
        status=status,
        code=problem.code,
        detail=problem.detail,
        subject=problem.subject,
        field=problem.field,
        retry_after_ms=problem.retry_after_ms,
    )
    headers = {}
    if problem.retry_after_ms:
        headers["retry-after"] = str(math.ceil(problem.retry_after_ms / 1_000))
    if status is HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(told.model_dump(), status, headers, MEDIA_TYPE)


async def _problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return document(error)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServerError)
    return document(Problem.of(error))


async def _misfit(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Misfit)
    return document(Problem("INVALID_ARGUMENT", str(error), field=error.field))


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = f"the body is no JSON: {first['ctx']['error']}, at character {first['loc'][-1]}"
        return document(Problem("INVALID_ARGUMENT", reason))
    # The first part says whether it stands in the path, the query or the body.
    place = ".".join(str(part) for part in first["loc"][1:])
    message = str(first["msg"]).removeprefix("Value error, ")
    return document(Problem("INVALID_ARGUMENT", f"{place or 'the body'}: {message}", field=place))


async def _plain(_: Request, error: Exception) -> JSONResponse:
    """What the web stack refuses by itself: an unknown path, a method that a path does not have."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    code = {404: "NOT_FOUND", 405: "UNIMPLEMENTED"}.get(status, "INVALID_ARGUMENT")
    # A body that could not be read has its reason behind it.
    reason = str(error.detail) if error.__cause__ is None else f"the body is no JSON: {error.__cause__}"
    answer = document(Problem(code, reason), status)
    answer.headers.update(error.headers or {})
    return answer
