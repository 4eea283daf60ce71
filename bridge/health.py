"""/healthz, /readyz and /metrics over HTTP, when `health.port` is set (bridge-and-channels §2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.errors import SteadybotError
from bridge.metrics import BUCKETS, Metrics
from bridge.settings import HealthSection

log = structlog.get_logger()

Readiness = Callable[[], Awaitable[Mapping[str, bool]]]
"""What has to work, by name, and whether it does now."""


class _Families(Collector):
    """Our numbers as Prometheus' metric families, made when somebody asks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "steadybot_events", "Events, by the names they have in the log", labels=["event"]
        )
        for name, count in self._metrics.counts().items():
            events.add_metric([name], count)
        yield events
        tokens = CounterMetricFamily("steadybot_tokens", "Tokens that the providers counted", labels=["kind"])
        for kind, count in self._metrics.tokens().items():
            tokens.add_metric([kind], count)
        yield tokens
        for name, value in self._metrics.gauges().items():
            yield GaugeMetricFamily(f"steadybot_{name}", f"{name.replace('_', ' ')} now", value)
        times = HistogramMetricFamily("steadybot_seconds", "How long it took", labels=["what"])
        for what, histogram in self._metrics.times().items():
            so_far, buckets = 0, []
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), histogram.counts, strict=True):
                so_far += count
                buckets.append((bound, so_far))
            times.add_metric([what], buckets, histogram.total)
        yield times


@asynccontextmanager
async def serve_health(settings: HealthSection, metrics: Metrics, ready: Readiness) -> AsyncIterator[int]:
    """Serves while it is entered, and gives the port. Raises SteadybotError where the port can't be had."""
    registry = CollectorRegistry()
    registry.register(_Families(metrics))
    ProcessCollector(registry=registry)

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def readyz(_: web.Request) -> web.Response:
        found = await ready()
        return web.json_response(dict(found), status=200 if all(found.values()) else 503)

    async def numbers(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", numbers)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except OSError as error:
            raise SteadybotError(
                f"health: {settings.host}:{settings.port} can't be used ({error.strerror}); choose another port"
            ) from error
        port = int(runner.addresses[0][1])
        log.info("health.serving", host=settings.host, port=port)
        yield port
    finally:
        await runner.cleanup()
