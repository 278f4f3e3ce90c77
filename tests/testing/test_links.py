"""Links that tests cut: relayed data, held back data, and closed connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_stream.testing.links import Link, Links
from tests.support import eventually, free_port


@pytest.fixture
def links() -> Iterator[Links]:
    found = Links()
    yield found
    found.close()


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of an echo server."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(peer,), daemon=True).start()

        def answer(peer: socket.socket) -> None:
            with peer:
                while data := peer.recv(65_536):
                    peer.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield "{}:{}".format(*server.getsockname()[:2])
        server.shutdown(socket.SHUT_RDWR)


def connected(link: Link) -> socket.socket:
    host, _, port = link.address.rpartition(":")
    found = socket.create_connection((host, int(port)))
    found.settimeout(10)
    return found


def test_link_relays_data_in_both_directions(links, echo):
    link = links.open()
    link.lead_to(echo)
    with connected(link) as ours:
        ours.sendall(b"x" * 100_000)
        got = b""
        while len(got) < 100_000:
            got += ours.recv(65_536)


def test_cut_link_holds_back_data_until_it_heals(links, echo):
    link = links.open()
    link.lead_to(echo)
    with connected(link) as ours:
        ours.sendall(b"before")
        assert ours.recv(6) == b"before"
        link.cut()
        ours.sendall(b"while")
        ours.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ours.recv(1)
        with connected(link) as late:  # it connects, and receives no data
            late.sendall(b"late")
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.recv(1)
            link.heal()
            for each, expected in ((ours, b"while"), (late, b"late")):
                each.settimeout(10)
                assert each.recv(65_536) == expected


@pytest.mark.parametrize("known", [False, True])
def test_connection_without_a_listening_target_is_closed(links, known):
    """A connection to a dead broker must differ from one to a silent broker."""
    link = links.open()
    if known:
        link.lead_to(f"127.0.0.1:{free_port()}")
    with connected(link) as ours:
        assert ours.recv(1) == b""


def test_target_of_a_link_may_change(links, echo):
    link = links.open()
    link.lead_to(f"127.0.0.1:{free_port()}")
    with connected(link) as ours:
        assert ours.recv(1) == b""
    link.lead_to(echo)
    with connected(link) as ours:
        ours.sendall(b"there")
        assert ours.recv(5) == b"there"


def test_close_ends_all_connections_including_held_back_ones(echo):
    links = Links()
    link = links.open()
    link.lead_to(echo)
    with connected(link) as ours, connected(link) as other:
        ours.sendall(b"a")
        assert ours.recv(1) == b"a"
        link.cut()
        ours.sendall(b"b" * 1_000_000)
        links.close()
        for each in (ours, other):
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
    eventually(lambda: not any(t.name == "isolog-links" for t in threading.enumerate()))
