"""Report measurements to Ray's metrics, which the agent of each node exports to Prometheus.

Ray labels every series with its process (`WorkerId`) and node (`NodeAddress`), so Podium adds no replica
label.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ray.util import metrics

from serving.telemetry.measurement import Measurement, MeasurementSink, report
from serving.telemetry.metrics import INSTRUMENTS, MOST_SERIES, OTHER, Instrument, to_prometheus

SAMPLED_EVERY_S = 5.0
"""Seconds between two samples of the gauges. By default, Ray reports to its agent every 10 s."""


class RayMeter:
    """A `MeasurementSink` that reports to `ray.util.metrics`."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {each.name: _metric(each) for each in INSTRUMENTS}
        self._series = Series()

    def take(self, measurement: Measurement) -> None:
        instrument, value, labels = measurement
        metric, tags = self._metrics[instrument.name], self._series.tags(instrument, labels)
        match instrument.kind:
            case "counter":
                if value > 0:  # Ray rejects an increment of 0
                    metric.inc(value, tags)
            case "histogram":
                metric.observe(value, tags)
            case "gauge":
                metric.set(value, tags)


class Series:
    """Label sets by instrument, at most `MOST_SERIES`, because Ray's agent keeps all in memory."""

    def __init__(self) -> None:
        self._tags: dict[str, dict[tuple[str, ...], dict[str, str]]] = {each.name: {} for each in INSTRUMENTS}

    def tags(self, instrument: Instrument, labels: tuple[str, ...]) -> dict[str, str]:
        """Return labels in Ray's format. Beyond `MOST_SERIES` sets, every label of a new one becomes `OTHER`."""
        series = self._tags[instrument.name]
        if labels not in series and len(series) >= MOST_SERIES:
            labels = (OTHER,) * len(labels)
        if labels not in series:
            series[labels] = dict(zip(map(to_prometheus, instrument.labels), labels, strict=True))
        return series[labels]


def _metric(instrument: Instrument) -> Any:
    keys = tuple(map(to_prometheus, instrument.labels))
    match instrument.kind:
        case "counter":
            return metrics.Counter(instrument.prometheus_name, instrument.text, keys)
        case "histogram":
            return metrics.Histogram(
                instrument.prometheus_name, instrument.text, list(instrument.buckets), keys
            )
        case "gauge":
            return metrics.Gauge(instrument.prometheus_name, instrument.text, keys)


def sample(meter: MeasurementSink, levels: Callable[[], Iterable[Measurement]]) -> None:
    """Report the gauges that `levels` returns, in a thread, so that they continue while the loop is busy."""

    def report_forever() -> None:
        while True:
            report(meter, levels())
            time.sleep(SAMPLED_EVERY_S)

    threading.Thread(target=report_forever, name="levels", daemon=True).start()
