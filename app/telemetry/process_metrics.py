"""What the system tells of the processes of the service: CPU, memory, files, start.

Prometheus' names for it are of one process, and a sum over workers would be of none: memory that they share would count
several times, and the CPU time would fall whenever a worker is replaced. So each process has values of its own, told
apart by the label `process`, and any process reads those of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from app.telemetry.metric_definitions import PROCESS_COUNTERS, PROCESS_GAUGES

Measured = Mapping[int, Mapping[str, float]]
"""The values of each process by its slot, by the names of the metrics."""


def measure(processes: Mapping[int, int]) -> Measured:
    """The values of `processes`, ids by slot; of one that has just ended, none. Reads /proc, and may block."""
    return {
        slot: {
            family.name: family.samples[0].value
            for family in ProcessCollector(pid=partial(str, pid), registry=None).collect()
        }
        for slot, pid in processes.items()
    }


def process_families(measured: Measured) -> Iterator[Metric]:
    """The metrics of what was measured."""
    for kind, texts in ((CounterMetricFamily, PROCESS_COUNTERS), (GaugeMetricFamily, PROCESS_GAUGES)):
        for name, text in texts.items():
            family = kind(name, text, labels=("process",))
            for slot, values in measured.items():
                if name in values:
                    family.add_metric((str(slot),), values[name])
            yield family
