import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from gateway.answers import Rate
from gateway.metrics import REASONS, Gauges, Metrics, SourceGauges

ROOT = Path(__file__).parent.parent
NAMES = re.compile(r"\bgateway_[a-z_]+")


def full() -> Metrics:
    metrics = Metrics()
    metrics.delivery("s", "forwarded", 0.01)
    metrics.refused("s", "signature")
    metrics.unavailable("s", "store-away")
    metrics.matched("s", ["issue-created"])
    metrics.proven("s", "0")
    metrics.dispatched("done", "done", 0.2, sent=True)
    metrics.parked(60)
    metrics.admission("refused", "claims")
    metrics.notified("sent")
    metrics.dropped(2)
    return metrics


GAUGES = Gauges(
    100.0,
    True,
    {"s": SourceGauges("flowing", 90.0, None, 1, 2, 3, 40.0), "t": SourceGauges("new", None, None, 0, 0, 0, None)},
    {7: 160.0},
    {"active": 2, "suspended": 0},
    1,
    {7: Rate(4999, 5000, 3600.0)},
)


def values(text: bytes) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key != "worker")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_what_is_shown() -> None:
    shown = values(full().present(GAUGES))
    assert shown["gateway_deliveries_total", "forwarded", "s"] == 1
    assert shown["gateway_refused_total", "signature", "s"] == 1
    assert shown["gateway_matched_total", "s", "issue-created"] == 1
    assert shown["gateway_secret_used_total", "0", "s"] == 1
    assert shown["gateway_dispatches_total", "done", "done"] == 1
    assert shown["gateway_admissions_total", "claims", "refused"] == 1
    assert shown["gateway_parked_seconds_total",] == 60
    assert shown["gateway_records_dropped_total",] == 2
    assert shown["gateway_admit_seconds_count", "s"] == 1
    assert shown["gateway_last_good_age_seconds", "s"] == 10
    assert shown["gateway_queue_oldest_age_seconds", "s"] == 60
    assert shown["gateway_installation_parked_seconds", "7"] == 60
    assert shown["gateway_github_rate_remaining", "7"] == 4999
    assert (shown["gateway_source_health", "s", "flowing"], shown["gateway_source_health", "s", "new"]) == (1, 0)


def test_no_data_is_not_healthy() -> None:
    shown = values(Metrics().present(GAUGES))
    assert shown["gateway_last_good_age_seconds", "t"] == float("inf")
    away = values(full().present(Gauges(100.0, False)))
    assert away["gateway_store_up",] == 0
    assert [name for name, *_ in away if name.startswith(("gateway_source_health", "gateway_queue"))] == []


def test_labels_are_bounded_whatever_the_caller_says() -> None:
    metrics = Metrics()
    for number in range(REASONS * 3):
        metrics.refused("s", f"reason-{number}")
    metrics.refused("s", "Ada Lovelace <ada@example.com>")
    metrics.refused("s", "x" * 500)
    labels = {key[1] for key in values(metrics.present(GAUGES)) if key[0] == "gateway_refused_total"}
    assert len(labels) == REASONS + 1
    assert "other" in labels


def shipped() -> set[str]:
    return set(NAMES.findall(full().present(GAUGES).decode()))


def used(text: str) -> set[str]:
    return set(NAMES.findall(text))


def test_alerts_and_dashboard_ask_only_for_what_there_is() -> None:
    alerts = YAML(typ="safe").load((ROOT / "deploy/prometheus-alerts.yml").read_text())
    expressions = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    dashboard = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = set().union(*(used(expression) for expression in expressions))
    assert asked - shipped() == set()


def test_every_metric_is_documented() -> None:
    described = {family.name for family in text_string_to_metric_families(full().present(GAUGES).decode())}
    told = used((ROOT / "docs/observability.md").read_text())
    families = {name for name in described if not name.endswith("_created")}
    assert {name for name in families if name not in told and f"{name}_total" not in told} == set()
    assert {name for name in told if name.removesuffix("_total") not in families} == set()


def test_the_alert_rules_fire(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: it is in the prometheus package")
    rules = ROOT / "deploy/prometheus-alerts.yml"
    cases = (ROOT / "tests/vectors/alerts/alerts.yaml").read_text().replace("RULES", str(rules))
    (tmp_path / "cases.yaml").write_text(cases)
    for command in (["check", "rules", str(rules)], ["test", "rules", str(tmp_path / "cases.yaml")]):
        done = subprocess.run([promtool, *command], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_metrics_page_passes_promtool() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: it is in the prometheus package")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=full().present(GAUGES), check=False, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
