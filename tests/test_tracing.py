import builtins
import time
import uuid
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gateway.admission import Run
from gateway.delivery import Outcome
from gateway.errors import ConfigError
from gateway.settings import Tracing
from gateway.store import Batch, uuid7
from gateway.tracing import Traces, root_span_id, trace_id
from gateway.watch import Watch

SETTINGS = Tracing(endpoint="http://127.0.0.1:4318/v1/traces")


def test_one_trace_from_receive_to_the_admitted_run() -> None:
    """Three processes that share nothing but the delivery's id write one trace."""
    exporter, delivery, other = InMemorySpanExporter(), uuid7(), uuid7()
    now = time.time()
    for step in ("receive", "dispatch", "admit"):
        traces = Traces.open(SETTINGS, "gateway.toml", exporter)
        watch = Watch(traces)
        if step == "receive":
            watch.delivery("s", delivery, Outcome.FORWARDED, None, key="0", triggers=["t"], began=now - 1, status=200)
        elif step == "dispatch":
            batch = Batch("s", "d:t", "d", "t", "x", ("{}",), (delivery, other), 0, None, "lease")
            watch.settled(batch, "done", "done", status=204, took_s=0.2)
        else:
            watch.admission(Run("1", 1, "sha256:a", "x", delivery), "admitted", now)
        traces._provider.force_flush()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"receive", "dispatch", "admit-run"}
    contexts = {name: span.get_span_context() for name, span in spans.items()}
    assert {context.trace_id for context in contexts.values() if context} == {uuid.UUID(delivery).int}
    root = spans["receive"]
    assert root.parent is None
    assert contexts["receive"] is not None
    assert contexts["receive"].span_id == root_span_id(delivery)
    for name in ("dispatch", "admit-run"):
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == root_span_id(delivery)
    assert [link.context.trace_id for link in spans["dispatch"].links] == [trace_id(other)]
    assert dict(root.attributes or {})["gateway.outcome"] == "forwarded"


def test_a_refusal_is_an_error_and_two_roots_differ() -> None:
    exporter = InMemorySpanExporter()
    watch = Watch(Traces.open(SETTINGS, "gateway.toml", exporter))
    ids = [uuid7(), uuid7()]
    for ident in ids:
        watch.delivery("s", ident, Outcome.REJECTED, "signature", key=None, triggers=[], began=time.time(), status=401)
    assert watch.traces is not None
    watch.traces.close()
    spans = exporter.get_finished_spans()
    contexts = [span.get_span_context() for span in spans]
    assert [context and context.trace_id for context in contexts] == [trace_id(ident) for ident in ids]
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}


def test_the_ratio_is_kept_and_all_processes_decide_alike() -> None:
    first = Traces.open(Tracing(endpoint=SETTINGS.endpoint, ratio=0.25), "f", InMemorySpanExporter())
    second = Traces.open(Tracing(endpoint=SETTINGS.endpoint, ratio=0.25), "f", InMemorySpanExporter())
    ids = [uuid7() for _ in range(4000)]
    taken = [ident for ident in ids if first.sampled(ident)]
    assert 800 < len(taken) < 1200
    assert taken == [ident for ident in ids if second.sampled(ident)]
    none = Traces.open(Tracing(endpoint=SETTINGS.endpoint, ratio=0), "f", InMemorySpanExporter())
    assert not any(none.sampled(ident) for ident in ids)


def test_without_the_packages_the_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match="tracing"):
        Traces.open(SETTINGS, "gateway.toml")
