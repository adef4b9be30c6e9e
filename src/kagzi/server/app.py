"""The composition root: one server with everything it is made of, started and stopped in order. Whoever
sends is started after whoever answers, and stopped before: a call that was accepted is answered, or refused
with a reason. It holds no rules of its own.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from functools import partial

import grpc
import structlog
import uuid_utils
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kagzi.protocol.v1 import (
    admin_pb2_grpc,
    automation_pb2_grpc,
    namespace_pb2_grpc,
    schedule_pb2_grpc,
    worker_pb2_grpc,
    workflow_pb2_grpc,
)
from kagzi.protocol.v1.admin_pb2 import HEALTH_DEGRADED, HEALTH_SERVING
from kagzi.server.alarm import Alarm
from kagzi.server.announcer import Announcer
from kagzi.server.api.admin import Admin
from kagzi.server.api.automations import Automations
from kagzi.server.api.checks import MESSAGE_BYTES
from kagzi.server.api.errors import Errors
from kagzi.server.api.gate import Gate
from kagzi.server.api.namespaces import Namespaces
from kagzi.server.api.schedules import Schedules
from kagzi.server.api.streams import Streams
from kagzi.server.api.workers import Workers
from kagzi.server.api.workflows import Workflows
from kagzi.server.batcher import Batcher
from kagzi.server.coordinator import Coordinator
from kagzi.server.dispatcher import Dispatcher
from kagzi.server.enrolment import Enrolment
from kagzi.server.firing import Firing
from kagzi.server.gauges import Gauges
from kagzi.server.keyring import Keyring
from kagzi.server.letterbox import Letterbox
from kagzi.server.listener import Listener, StartError
from kagzi.server.meters import Meters
from kagzi.server.notifier import Notifier
from kagzi.server.settings import Settings
from kagzi.server.slots import next_slot
from kagzi.server.tallies import Tallies
from kagzi.server.vitals import Check, Vitals
from kagzi.server.watchers import Watchers
from kagzi.store.database import Database
from kagzi.store.notices import Kind
from kagzi.store.rules import Rules

log = structlog.get_logger(__name__)

OPTIONS = (
    # A message just over the limit is read and refused with a typed error; one far over it is never read.
    ("grpc.max_receive_message_length", 2 * MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # A dead peer is noticed within 15 s. Clients ping every 5 s, also without calls; 2 s leave them room.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
    # Two servers on one port would share its connections by chance.
    ("grpc.so_reuseport", 0),
)
SERVICES = tuple(
    f"kagzi.v1.{name}Service" for name in ("Workflow", "Worker", "WorkflowSchedule", "Admin", "Namespace", "Automation")
)


# What is left when the grace is over is refused this much before.
_REFUSAL_SECS = 0.5


class Server:
    """One server on one database. `url` is where that is, `settings.db_url` when it is None."""

    def __init__(self, settings: Settings, url: str | None = None) -> None:
        database_url = url or settings.db_url
        if database_url is None:
            raise StartError("no database is named: set KAGZI_DB_URL")
        lease = timedelta(seconds=settings.lease_secs)
        heartbeat = timedelta(seconds=settings.heartbeat_secs)
        self.settings = settings
        self.listener = Listener(settings)
        connect = partial(
            Database,
            database_url,
            size=max(2, settings.db_pool_size // 2),
            lease_seconds=settings.lease_secs,
            statement_cache=settings.db_statement_cache_size,
        )
        self.database = connect()
        # For what runs do all the time; what people ask for is planned for what they ask.
        self.hot_database = connect(planned_once=True)
        self.notifier = Notifier(settings.db_listen_url or database_url)
        self.announcer = Announcer(self.notifier)
        self.dispatcher = Dispatcher(
            self.hot_database,
            self.announcer,
            lease=lease,
            heartbeat=heartbeat,
            interval=settings.dispatcher_interval_secs,
        )
        self.batcher = Batcher(
            self.hot_database,
            self.announcer,
            self.dispatcher,
            lease=lease,
            lanes=settings.batcher_lanes,
            handler_lanes=settings.batcher_handler_lanes,
            batch_operations=settings.batcher_batch_operations,
            queue_operations=settings.batcher_queue_operations,
            queue_bytes=settings.batcher_queue_bytes,
            patience=settings.batcher_patience_secs,
            rules=Rules(
                timedelta(seconds=settings.automation_wake_min_secs),
                timedelta(seconds=settings.automation_wake_max_secs),
                next_slot,
                settings.limit_history_steps,
                settings.limit_history_bytes,
            ),
        )
        self.enrolment = Enrolment(
            self.database,
            self.announcer,
            lease=lease,
            heartbeat=heartbeat,
            history_steps=settings.limit_history_steps,
        )
        self.streams = Streams(self.database, self.enrolment, self.batcher, self.dispatcher)
        self.watchers = Watchers(self.database, interval=settings.dispatcher_interval_secs)
        self.letterbox = Letterbox(
            self.database, self.notifier, self.announcer, interval=settings.dispatcher_interval_secs
        )
        self.coordinator = Coordinator(self.database, self.notifier, settings, self.announcer.announce)
        self.alarm = Alarm(
            self.database,
            self.notifier,
            self.announcer.announce,
            interval=settings.coordinator_interval_secs,
            batch=settings.coordinator_batch_size,
        )
        self.firing = Firing(self.database, self.notifier, self.announcer, settings)
        server_id = str(uuid_utils.uuid7())
        self.vitals = Vitals(self.database, settings, server_id, self._parts)
        self.tallies = Tallies(self.database, server_id)
        self.gauges = Gauges(self.database, server_id)
        loops = (self.coordinator, self.alarm, self.firing, self.tallies, self.gauges, self.letterbox, self.streams)
        self.meters = Meters(self.database, self.tallies, loops=loops, gauges=self._standing)
        self.keyring = Keyring(self.database, admin_key=settings.admin_key)
        self.health = health.aio.HealthServicer()
        self._grpc: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """Where clients find it; the port is the bound one once it has started."""
        return self.listener.address

    @property
    def port(self) -> int:
        """The bound port; 0 before it has started."""
        return self.listener.port

    @property
    def reachable_at(self) -> str:
        """Where this very process finds it."""
        return self.listener.reachable_at

    async def start(self) -> None:
        """Serves when it returns. Fails at once when the database or the port cannot be had."""
        await self.database.open()
        try:
            await self.hot_database.open()
            self._grpc = self._bind()
            self._subscribe()
            self.notifier.start()
            self.keyring.start()
            self.batcher.start()
            self.streams.start()
            self.watchers.start()
            self.letterbox.start()
            self.coordinator.start()
            self.alarm.start()
            self.firing.start()
            self.tallies.start()
            self.gauges.start()
            await self._grpc.start()
        except BaseException:
            await self.stop(0)
            raise
        log.info("server_started", address=self.address)

    async def stop(self, grace: float | None = None) -> None:
        """Takes no more calls, lets those under way end within `grace` seconds, and closes everything."""
        grace = self.settings.server_drain_timeout_secs if grace is None else grace
        until = time.monotonic() + grace
        await self.health.enter_graceful_shutdown()
        await self.gauges.stop()
        await self.firing.stop()
        await self.coordinator.stop()
        await self.alarm.stop()
        await self.letterbox.stop()
        calls = asyncio.create_task(self._grpc.stop(grace)) if self._grpc else None
        self.streams.close()
        await self.watchers.stop()
        await self.dispatcher.stop()
        await self.streams.stop()
        # Refused here before gRPC cancels what is left, so that every caller hears why.
        await self.batcher.stop(max(0.0, until - time.monotonic() - _REFUSAL_SECS))
        if calls is not None:
            await calls
        await self.tallies.stop()
        await self.keyring.stop()
        await self.notifier.stop()
        await self.hot_database.close()
        await self.database.close()
        self.listener.close()
        log.info("server_stopped", address=self.address)

    def _subscribe(self) -> None:
        """Who hears of what, here and from other servers."""
        self.announcer.on_told(self.streams.told)
        self.announcer.on_deadline(self.coordinator.look)
        self.announcer.on_alarm(self.alarm.rings)
        self.announcer.on_clock(self.firing.look)
        self.announcer.on_started(self.tallies.started)
        self.announcer.on_applied(self.tallies.applied)
        self.announcer.on_ended(self.tallies.ended)
        self.announcer.on_claimed(self.tallies.claimed)
        self.announcer.on_flushed(self.meters.flushed)
        self.firing.on_fired = self.meters.fired
        self.announcer.on_ended(self.watchers.ended)
        self.announcer.on_applied(self.watchers.applied)
        self.announcer.on_ended(self.streams.ended)
        self.notifier.subscribe(Kind.WORK, self.dispatcher.heard)
        self.notifier.subscribe(Kind.TOLD, self.streams.heard)
        self.notifier.subscribe(Kind.ENDED, self.watchers.heard)

    def _standing(self) -> dict[str, tuple[str, float]]:
        """What stands in memory, for the meters."""
        return {
            "batcher_operations": ("Operations that wait for a flush or are in one.", self.batcher.queued),
            "connected_workers": ("Workers with a stream to this server.", self.streams.connected),
        }

    def _parts(self) -> list[Check]:
        """How the parts do that work for nobody in particular; without one the rest goes on more slowly."""
        heard = self.notifier.connected.is_set()
        failed = "it failed and pauses: look for loop_crashed in the log"
        crowded = "more waits to be written than the database takes: calls wait, or are told to come back"
        room = self.batcher.has_room()
        return [
            _check("notify", heard, "other servers are not heard: due runs are found within a second instead"),
            _check("coordinator", self.coordinator.alive, failed),
            _check("firing", self.firing.alive, failed),
            _check("batcher", room and self.batcher.alive, failed if room else crowded),
            _check("dispatcher", self.dispatcher.alive, failed),
        ]

    def _bind(self) -> grpc.aio.Server:
        gates = [Gate(self.keyring)] if self.settings.keys_required else []
        server = grpc.aio.server(interceptors=[Errors(), *gates], options=OPTIONS)
        self._register(server)
        self.listener.listen(server)
        return server

    def _register(self, server: grpc.aio.Server) -> None:
        """Every service of the contract that this server has; calls of others are answered UNIMPLEMENTED."""
        workflow_pb2_grpc.add_WorkflowServiceServicer_to_server(
            Workflows(self.database, self.batcher, self.watchers), server
        )
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(
            Workers(self.enrolment, self.batcher, self.dispatcher, self.streams), server
        )
        admin_pb2_grpc.add_AdminServiceServicer_to_server(Admin(self.database, self.vitals, self.streams.drain), server)
        schedule_pb2_grpc.add_WorkflowScheduleServiceServicer_to_server(
            Schedules(self.database, self.announcer, self.settings.timezone), server
        )
        namespace_pb2_grpc.add_NamespaceServiceServicer_to_server(
            Namespaces(self.database, self.keyring.revoked), server
        )
        automation_pb2_grpc.add_AutomationServiceServicer_to_server(
            Automations(self.database, self.announcer, self.settings.timezone), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        if self.settings.server_reflection:
            reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


def _check(name: str, well: bool, message: str) -> Check:
    if well:
        return Check(name=name, status=HEALTH_SERVING)
    return Check(name=name, status=HEALTH_DEGRADED, message=message)
