"""Scrapes of a broker, as Prometheus reads them."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass, field

from prometheus_client.openmetrics.parser import text_string_to_metric_families

_OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def page(address: str, path: str, accept: str = "*/*") -> tuple[int, str]:
    """The status and the text of a page."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@dataclass
class Samples:
    """The samples of one scrape, by their name and labels, and the names of all families."""

    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)

    def __call__(self, name: str, **labels: str) -> float:
        return self.found[name, frozenset(labels.items())]

    def of(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        """All samples of a name, by their labels."""
        return {labels: value for (each, labels), value in self.found.items() if each == name}

    @property
    def names(self) -> dict[str, set[str]]:
        """The labels of each name that has a sample."""
        names: dict[str, set[str]] = {}
        for name, labels in self.found:
            names.setdefault(name, set()).update(label for label, _ in labels)
        return names


def scraped(address: str, path: str = "/metrics/all") -> Samples:
    """A scrape, checked by the parser of OpenMetrics."""
    status, text = page(address, path, _OPEN_METRICS)
    assert status == 200
    samples = Samples()
    for family in text_string_to_metric_families(text):
        samples.families.add(family.name)
        for sample in family.samples:
            samples.found[sample.name, frozenset(sample.labels.items())] = sample.value
    return samples
