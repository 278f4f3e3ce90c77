"""Series for Prometheus: their declarations, and the collector of their values.

A group of series is a subclass of :class:`Figures`. A field is a series: its name is the field's
with ``isolog_`` before it, and ``_total`` after that of a counter. Its value is a number or a
distribution, or one for each tuple of label values. Names end with their unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar, dataclass_transform

from msgspec import Struct

from spark_stream.counting import Distribution
from spark_stream.exposition import Application, prometheus, series_page

S = TypeVar("S")
"""The state at one scrape, of which a group reads its values."""


class SeriesKind(StrEnum):
    """The type of a series, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Subject(Enum):
    """The subject of a group of series.

    The members are in the order of the tables in docs/reference/metrics.md.
    """

    CLUSTER = "The cluster, as this broker sees it (take `max`, not `sum`, over brokers)"
    BROKER = "The broker and its replicas"
    TRAFFIC = "Traffic"
    LATENCY = "Latency and errors"
    TRANSACTIONS = "Transactions, and what readers wait for"
    REPLICATION = "Replication"
    DISK = "Disk"
    LOAD = "Memory, connections, quotas"
    STORE = "Metadata store"
    CONSUMERS = "Consumers, queries and sinks"
    LAKES = "Lakes"
    LAKE_WORKER = "The worker of a lake"
    KAFKA_GATEWAY = "A Kafka gateway"


Labels: TypeAlias = tuple[str, ...]
Sample: TypeAlias = float | Distribution
ByLabels: TypeAlias = Mapping[Labels, float]
Distributions: TypeAlias = Mapping[Labels, Distribution]


class Series(Struct, frozen=True):
    """One family of series. Its value is the field of this name in a group of figures."""

    subject: Subject
    name: str
    kind: SeriesKind
    meaning: str
    labels: Labels
    detailed: bool
    field: str


def counter(meaning: str, *labels: str) -> Any:
    """Declare a number that only grows."""
    return field(metadata={"series": (SeriesKind.COUNTER, meaning, labels)})


def gauge(meaning: str, *labels: str) -> Any:
    """Declare a number that may fall."""
    return field(metadata={"series": (SeriesKind.GAUGE, meaning, labels)})


def histogram(meaning: str, *labels: str) -> Any:
    """Declare a distribution of durations."""
    return field(metadata={"series": (SeriesKind.HISTOGRAM, meaning, labels)})


@dataclass_transform(kw_only_default=True, field_specifiers=(counter, gauge, histogram))
class Figures(ABC, Generic[S]):
    """A group of series, with their values at one scrape. Subclasses are dataclasses."""

    subject: ClassVar[Subject]
    detailed: ClassVar[bool]

    def __init_subclass__(cls, *, subject: Subject, detailed: bool = False) -> None:
        cls.subject = subject
        cls.detailed = detailed
        dataclass(kw_only=True)(cls)

    @classmethod
    @abstractmethod
    def read(cls, scrape: S) -> Self:
        """Read the values of one scrape."""

    @classmethod
    def series(cls) -> Iterator[Series]:
        """Yield the series of the group."""
        for each in fields(cls):  # type: ignore[arg-type]  # mypy: no dataclass before subclassing
            kind, meaning, labels = each.metadata["series"]
            name = f"isolog_{each.name}" + ("_total" if kind is SeriesKind.COUNTER else "")
            yield Series(cls.subject, name, kind, meaning, labels, cls.detailed, each.name)


class SeriesCollector(Generic[S]):
    """The collector of groups of series for prometheus-client, which calls it for each scrape."""

    def __init__(self, scrape: Callable[[], S], groups: Sequence[type[Figures[S]]]) -> None:
        """``scrape`` returns the state at this time."""
        self._scrape = scrape
        self._groups = groups
        self._families = prometheus().metrics_core

    def describe(self) -> list[Any]:
        """Return no families: registration needs no scrape."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families of one scrape."""
        scrape = self._scrape()
        for group in self._groups:
            figures = group.read(scrape)
            for series in group.series():
                yield self._family(series, getattr(figures, series.field))

    def _family(self, series: Series, found: Sample | Mapping[Labels, Sample]) -> Any:
        samples: Mapping[Labels, Sample] = found if isinstance(found, Mapping) else {(): found}
        family = {
            SeriesKind.COUNTER: self._families.CounterMetricFamily,
            SeriesKind.GAUGE: self._families.GaugeMetricFamily,
            SeriesKind.HISTOGRAM: self._families.HistogramMetricFamily,
        }[series.kind](series.name, series.meaning, labels=series.labels)
        for labels, sample in samples.items():
            if isinstance(sample, Distribution):
                upto = [(str(bound), count) for bound, count in sample.upto]
                buckets = [*upto, ("+Inf", sample.count)]
                family.add_metric(labels, buckets, sum_value=sample.seconds)
            else:
                family.add_metric(labels, float(sample))
        return family


def figures_page(scrape: Callable[[], S], groups: Sequence[type[Figures[S]]]) -> Application:
    """Return the page with the series of groups, and those of the process.

    Raises:
        InvalidOption: prometheus-client is not installed.
    """
    client = prometheus()
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(SeriesCollector(scrape, groups))
    client.ProcessCollector(registry=registry)
    return series_page(registry)
