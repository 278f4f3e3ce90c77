"""A lake in S3 under faults: 503, lost answers, slow answers, wrong keys."""

from __future__ import annotations

import secrets

import pytest

from spark_stream.errors import InvalidOption, LakeUnavailable
from spark_stream.lake.storage import objects as module
from spark_stream.lake.storage.objects import ObjectStore
from tests.examples import is_quick
from tests.lake.storage.object_server import Faults

VERSIONS = 15 if is_quick() else 40


def address() -> str:
    return f"s3://lake/{secrets.token_hex(4)}"


def test_each_version_is_written_once_under_faults(objects):
    """A third of the requests is refused or loses its answer. No version is replaced."""
    store = ObjectStore(address())
    faults = objects.faults = Faults(refused=0.2, lost=0.15, seed=1)
    written: dict[int, bytes] = {}
    for version in range(VERSIONS):
        for attempt in range(20):
            content = b"%d-%d" % (version, attempt)
            try:
                if store.put_if_absent(f"t/{version}", content):
                    assert version not in written
                    written[version] = content
            except LakeUnavailable:
                continue
            try:
                found = store.read(f"t/{version}")
            except LakeUnavailable:
                continue
            assert found is not None
            assert found == written.get(version, found)
            break
    objects.faults = Faults()
    assert len(list(store.list("t/"))) == VERSIONS
    assert faults.count > VERSIONS / 2
    assert len(written) > VERSIONS / 2
    for version, content in written.items():
        assert store.read(f"t/{version}") == content


def test_a_server_that_refuses_all_is_unavailable(objects):
    """The number of retries is bounded, and the error has one line."""
    objects.faults = Faults(refused=1.0)
    store = ObjectStore(address())
    for call in (
        lambda: store.read("t/a"),
        lambda: store.put_if_absent("t/a", b"1"),
        lambda: store.open_read("t/a"),
        lambda: list(store.list("t/")),
    ):
        with pytest.raises(LakeUnavailable) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_slow_server_is_unavailable(objects):
    """An answer after the timeout has an unknown outcome."""
    store = ObjectStore(address(), timeout="300ms")
    objects.faults = Faults(slow_s=0.6)
    with pytest.raises(LakeUnavailable):
        store.read("t/a")


def test_a_missing_package_names_its_command(monkeypatch):
    """The error has the command of the extra."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(InvalidOption, match="needs the package obstore") as caught:
        ObjectStore("s3://lake/a")
    assert "[lake]" in str(caught.value.hint)
