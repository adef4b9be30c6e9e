"""Who makes a call: the namespace and the role that a key stands for. `current` is that of the call under way, None
where no keys are used; it is set by the gate before a servicer sees the request, and by nobody else.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.roles import Role
from kagzi.store.errors import Refused


@dataclass(frozen=True, slots=True)
class Credential:
    """A key that was found valid. The operator's own, of the settings, has no id and opens every namespace."""

    namespace: str
    key_id: str
    role: Role

    @property
    def everywhere(self) -> bool:
        """Whether it opens every namespace."""
        return not self.key_id


OPERATOR = Credential("", "", Role.ADMIN)
current: ContextVar[Credential | None] = ContextVar("kagzi_credential", default=None)


def only_namespace() -> str | None:
    """The one namespace that the call under way may see; None when it may see all."""
    credential = current.get()
    return None if credential is None or credential.everywhere else credential.namespace


def unauthorized(message: str) -> Refused:
    """There is no valid key."""
    return Refused(ErrorDetail(code=ErrorDetail.UNAUTHORIZED, message=message))


def denied(message: str, subject: str = "", field: str = "") -> Refused:
    """The key is valid and not enough."""
    return Refused(ErrorDetail(code=ErrorDetail.PERMISSION_DENIED, message=message, subject=subject, field=field))
