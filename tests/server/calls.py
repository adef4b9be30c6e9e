"""Calls over the wire as the tests of the services make them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status

from kagzi.protocol.v1.common_pb2 import ErrorDetail


async def refusal(call: Awaitable[Any]) -> ErrorDetail:
    """The detail of a call that must be refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    metadata = {str(key): value for key, value in caught.value.trailing_metadata()}
    status = Status.FromString(metadata["grpc-status-details-bin"])
    detail = ErrorDetail()
    assert status.details[0].Unpack(detail)
    return detail
