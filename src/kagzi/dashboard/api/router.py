"""The HTTP API under `/api/v1`: for each route of the table a function that checks what it is given, makes the call
with the caller's credential, and answers the message as JSON. Errors become problem documents elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from inspect import Parameter, Signature
from typing import Annotated, Any, get_origin

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic import BaseModel

from kagzi.dashboard import gateway
from kagzi.dashboard.api import models, values
from kagzi.dashboard.api.comments import comments
from kagzi.dashboard.api.table import ROUTES, Route
from kagzi.dashboard.credentials import of_program
from kagzi.dashboard.gateway import Gateway
from kagzi.dashboard.problems import MEDIA_TYPE, ProblemDocument
from kagzi.protocol.v1 import workflow_pb2 as pb
from kagzi.sdk import tracing

Endpoint = Callable[..., Awaitable[JSONResponse]]

_NAME = re.compile(r"\{(\w+)(?::path)?\}")
_BODY = "document"
_NAMESPACE = "Whose; the namespace of the key when empty, or `default` where no keys are used."
_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "model": ProblemDocument,
        "description": "What went wrong, and what to do.",
        "content": {MEDIA_TYPE: {}},
    }
}


def router(server: Gateway) -> APIRouter:
    """All routes."""
    made = APIRouter(prefix="/api/v1", dependencies=[Depends(_known)])
    made.add_api_route("/runs/{run_id}/result", _result(server), methods=["GET"], tags=["runs"], **_RESULT)
    for route in ROUTES:
        method = gateway.method(route.rpc)
        endpoint = _endpoint(server, route, method.input_type)
        made.add_api_route(
            route.path,
            endpoint,
            methods=[route.verb],
            status_code=route.status,
            tags=[route.tag],
            operation_id=f"{route.verb.lower()}_{_identifier(route.path)}",
            summary=(comments()[method.full_name]).partition(".")[0],
            description=comments()[method.full_name],
            response_model=models.answer(method.output_type),
            responses=_PROBLEM,
        )
        if route.verb == "GET":
            made.add_api_route(route.path, endpoint, methods=["HEAD"], include_in_schema=False)
    return made


async def _known(request: Request) -> None:
    """Refuses a name in the query that the route does not know, for a filter that is misspelt would find everything;
    and one that has one value and is given twice, for one of these would be left out in silence.
    """
    taken = {each.alias: each.field_info.annotation for each in request.scope["route"].dependant.query_params}
    # Who names a namespace with every request may do so where none is needed.
    known = sorted({"namespace", *taken})
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
            raise values.Misfit(name, f"{name!r} is no parameter here: {meant}")
        if times > 1 and get_origin(taken.get(name)) is not list:
            raise values.Misfit(name, f"{name!r} is given {times} times, and has one value: leave the others out")


def _endpoint(server: Gateway, route: Route, kind: Descriptor) -> Endpoint:
    in_path = _NAME.findall(route.path)
    led = {path.partition(".")[0] for path in route.fields.values()}
    rest = [field for field in kind.fields if field.name not in {*in_path, *led, *route.without, "namespace"}]
    has_body = route.verb in {"POST", "PATCH"}
    queried = {} if has_body else {_query_name(field): field for field in rest}
    elsewhere = {*in_path, "namespace", *led, *route.without}
    document = models.body(kind, elsewhere) if has_body else None
    # A namespace's own routes name it in the path or the body.
    spaced = "namespace" in kind.fields_by_name and kind.fields_by_name["namespace"].message_type is None

    async def answer(request: Request, **given: Any) -> JSONResponse:
        asked = values.new(kind)
        body = given.pop(_BODY, None)
        fields = body.model_dump(exclude_none=True) if isinstance(body, BaseModel) else {}
        for name, value in given.items():
            _place(fields, route.fields.get(name), name, value, queried)
        values.fill(asked, fields)
        if isinstance(asked, pb.StartWorkflowRequest):
            _trace(asked, request)
        told = await server.call(route.rpc, asked, of_program(request))
        return JSONResponse(values.to_json(told), route.status)

    parameters = [_parameter("request", Request)]
    parameters += [_parameter(name, Annotated[str, Path(description=_said(kind, name))]) for name in in_path]
    parameters += [_parameter(name, Annotated[str, Query()], "") for name in route.fields]
    parameters += [_query(name, field) for name, field in queried.items()]
    if spaced:
        parameters.append(_parameter("namespace", Annotated[str, Query(description=_NAMESPACE)], ""))
    if document is not None:
        # Every field of the contract has a default, so a body without any may be left out.
        parameters.append(_parameter(_BODY, document | None, None))
    answer.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return answer


def _trace(asked: pb.StartWorkflowRequest, request: Request) -> None:
    """A run that is started within a trace goes on in it; a header that is none is left out, as W3C has it."""
    parent = request.headers.get(tracing.PARENT, "")
    if tracing.well_formed(parent) and tracing.PARENT not in asked.labels:
        asked.labels[tracing.PARENT] = parent
        if request.headers.get(tracing.STATE):
            asked.labels[tracing.STATE] = request.headers[tracing.STATE][:255]


def _place(
    fields: dict[str, Any], led_to: str | None, name: str, value: Any, queried: dict[str, FieldDescriptor]
) -> None:
    """Puts what a path or query says where the request has it."""
    if led_to is not None:
        outer, _, inner = led_to.partition(".")
        fields.setdefault(outer, {})[inner] = value
        return
    field = queried.get(name)
    if field is None:
        fields[name] = value
    elif value is not None and value != []:
        is_map = values.entry(field) is not None
        fields[field.name] = dict(pair.split("=", 1) for pair in value) if is_map else value


def _query(name: str, field: FieldDescriptor) -> Parameter:
    kind = models.query(field)
    said = comments().get(field.full_name)
    if field.is_repeated:
        if name == "label":
            said = f"{said} As key=value; may be given several times."
        return _parameter(name, Annotated[kind, Query(description=said)], [])
    return _parameter(name, Annotated[kind | None, Query(description=said)], None)


def _query_name(field: FieldDescriptor) -> str:
    """`statuses` and `labels` are given one at a time: ?status=FAILED&status=CANCELLED&label=customer=7."""
    return {"statuses": "status", "labels": "label"}.get(field.name, field.name)


def _parameter(name: str, kind: Any, default: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _said(kind: Descriptor, name: str) -> str | None:
    field = kind.fields_by_name.get(name)
    return None if field is None else comments().get(field.full_name)


def _identifier(path: str) -> str:
    return re.sub(r"\W+", "_", _NAME.sub(r"\1", path)).strip("_")


_RESULT: dict[str, Any] = {
    "summary": "Waits for the end of a run",
    "description": (
        "Answers 200 with how the run ended, following continue-as-new, or 202 with its present status when it has not "
        "ended after `timeout_ms`."
    ),
    "operation_id": "get_runs_run_id_result",
    "response_model": models.answer(pb.WatchWorkflowsResponse.Ended.DESCRIPTOR),
    "responses": {
        202: {"model": models.answer(pb.WatchWorkflowsResponse.Ended.DESCRIPTOR), "description": "Not ended yet."},
        **_PROBLEM,
    },
}


def _result(server: Gateway) -> Endpoint:
    async def result(
        request: Request,
        run_id: Annotated[str, Path(description="Which run.")],
        timeout_ms: Annotated[int, Query(ge=0, le=60_000, description="How long to wait.")] = 30_000,
        namespace: Annotated[str, Query(description=_NAMESPACE)] = "",
    ) -> JSONResponse:
        shown = of_program(request)
        asked = pb.GetWorkflowRequest()
        values.fill(asked, {"namespace": namespace, "run_id": run_id})
        run = (await server.call("WorkflowService.GetWorkflow", asked, shown)).run  # type: ignore[attr-defined]
        watched = pb.WatchWorkflowsRequest(namespace=namespace, watch=[run.run_id])
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                async for told in server.watch(watched, shown):
                    for ended in told.ended:
                        return JSONResponse(values.to_json(ended))
        except TimeoutError:
            pass
        waits = pb.WatchWorkflowsResponse.Ended(run_id=run.run_id, final_run_id=run.run_id, status=run.status)
        return JSONResponse(values.to_json(waits), 202)

    return result
