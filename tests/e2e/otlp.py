"""A small OTLP receiver: what https://opentelemetry.io/docs/specs/otlp/#otlphttp asks of one, and it keeps what came."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Receiver:
    """The spans that came, and every byte of what carried them."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)

    async def take(self, request: web.Request) -> web.Response:
        """Answer one export."""
        assert request.content_type == "application/x-protobuf"
        body = await request.read()
        self.raw += body
        batch = ExportTraceServiceRequest.FromString(body)
        self.spans += [span for one in batch.resource_spans for scope in one.scope_spans for span in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run one on a free port of loopback."""
    receiver, app = Receiver(), web.Application()
    app.router.add_post("/v1/traces", receiver.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    yield receiver
    await runner.cleanup()
