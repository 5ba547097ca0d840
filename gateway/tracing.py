"""Traces from receive to the admitted run, off unless configured; needs the extra `webhook-gateway[tracing]`.

The trace's id is the delivery's id without its dashes, and the first span's id follows from it too. So processes that
share nothing but a delivery's id write into one trace, nothing is stored for it, and an operator finds the trace by the
id that every answer and record shows. Spans carry slugs and ids of ours, nothing of a delivery.
"""

import hashlib
import uuid
import zlib
from collections.abc import Sequence
from typing import Any, Self

from gateway.errors import ConfigError, Problem
from gateway.settings import Tracing

EXPORT_S = 5


class Traces:
    """Writes spans of what has already happened: each call makes one whole span."""

    def __init__(self, provider: Any, ids: "_Ids", ratio: float) -> None:
        self._provider, self._ids, self._ratio = provider, ids, ratio
        self._tracer = provider.get_tracer("gateway")

    @classmethod
    def open(cls, settings: Tracing, file: str, exporter: Any = None) -> Self:
        """Start exporting to the endpoint (or to `exporter`). ConfigError where the extra is not installed."""
        try:
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 (an extra)
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

            exporter = exporter or _otlp(settings.endpoint)
        except ImportError:
            fix = "pip install 'webhook-gateway[tracing]', or remove [tracing]"
            raise ConfigError([Problem(file, "tracing", "needs packages that are not installed", fix)]) from None
        ids: Any = _Ids()
        provider = TracerProvider(resource=Resource({"service.name": "webhook-gateway"}), id_generator=ids)
        provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_S * 1000))
        return cls(provider, ids, settings.ratio)

    def close(self) -> None:
        """Send what is left; at most a few seconds."""
        self._provider.force_flush(EXPORT_S * 1000)
        self._provider.shutdown()

    def sampled(self, delivery: str) -> bool:
        """Whether a delivery is traced. Every process decides alike, by a checksum: a UUIDv7's bits are too regular."""
        return zlib.crc32(delivery.encode()) < self._ratio * 2**32

    def received(self, delivery: str, began: float, ended: float, /, **facts: Any) -> None:
        """The root: one delivery from its first byte to its answer."""
        self._span("receive", delivery, (), began, ended, facts, root=True)

    def dispatched(self, deliveries: Sequence[str], began: float, ended: float, /, **facts: Any) -> None:
        """One turn of a batch, in the trace of its first delivery, linked with those of the others."""
        if deliveries:
            self._span("dispatch", deliveries[0], deliveries[1:], began, ended, facts)

    def admitted(self, delivery: str, began: float, ended: float, /, **facts: Any) -> None:
        """One answer to a run that asked for admission."""
        self._span("admit-run", delivery, (), began, ended, facts)

    def _span(
        self,
        name: str,
        delivery: str,
        others: Sequence[str],
        began: float,
        ended: float,
        facts: dict[str, Any],
        *,
        root: bool = False,
    ) -> None:
        if not self.sampled(delivery):
            return
        from opentelemetry import trace  # noqa: PLC0415 (there: `open` has imported the SDK)
        from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415

        def context(ident: str) -> Any:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            return trace.SpanContext(trace_id(ident), root_span_id(ident), is_remote=True, trace_flags=flags)

        parent = trace.set_span_in_context(trace.NonRecordingSpan(context(delivery))) if not root else None
        if root:
            self._ids.next = (trace_id(delivery), root_span_id(delivery))
        span = self._tracer.start_span(
            name,
            parent or trace.set_span_in_context(trace.INVALID_SPAN),
            start_time=int(began * 1e9),
            links=[trace.Link(context(other)) for other in others],
            attributes={f"gateway.{key}": value for key, value in facts.items() if value is not None},
        )
        if facts.get("failed"):
            span.set_status(Status(StatusCode.ERROR, str(facts.get("reason") or "")))
        span.end(int(ended * 1e9))


def trace_id(delivery: str) -> int:
    """The trace of a delivery: the same 128 bits."""
    return uuid.UUID(delivery).int


def root_span_id(delivery: str) -> int:
    """The id of the span under which all others of the trace stand."""
    return int.from_bytes(hashlib.sha256(b"root " + delivery.encode()).digest()[:8], "big") or 1


def _otlp(endpoint: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 (an extra)

    return OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)


class _Ids:
    """Random ids, but for a root span: its ids are set just before it is started, in the one thread that does."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415 (an extra)

        self._random = RandomIdGenerator()
        self.next: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return self.next[0] if self.next is not None else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        given, self.next = self.next, None
        return given[1] if given is not None else self._random.generate_span_id()

    def is_trace_id_random(self) -> bool:
        return False
