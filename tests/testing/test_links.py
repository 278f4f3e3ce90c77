"""Links that tests cut: what gets through, what waits, and what the ends are told."""

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
    """The address of a server that sends back what it gets, until the connection ends."""
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


def test_what_is_sent_gets_through_both_ways(links, echo):
    link = links.open()
    link.lead_to(echo)
    with connected(link) as ours:
        ours.sendall(b"x" * 100_000)
        got = b""
        while len(got) < 100_000:
            got += ours.recv(65_536)


def test_a_cut_link_holds_everything_back_until_it_is_whole(links, echo):
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
        with connected(link) as late:  # it connects, and hears nothing
            late.sendall(b"late")
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.recv(1)
            link.heal()
            for each, expected in ((ours, b"while"), (late, b"late")):
                each.settimeout(10)
                assert each.recv(65_536) == expected


@pytest.mark.parametrize("known", [False, True])
def test_a_connection_to_nobody_is_ended_at_once(links, known):
    """As the connection to a broker that is dead: it must not look like one that is silent."""
    link = links.open()
    if known:
        link.lead_to(f"127.0.0.1:{free_port()}")
    with connected(link) as ours:
        assert ours.recv(1) == b""


def test_a_link_may_be_led_elsewhere(links, echo):
    link = links.open()
    link.lead_to(f"127.0.0.1:{free_port()}")
    with connected(link) as ours:
        assert ours.recv(1) == b""
    link.lead_to(echo)
    with connected(link) as ours:
        ours.sendall(b"there")
        assert ours.recv(5) == b"there"


def test_the_end_closes_all_connections_also_such_as_are_held_back(echo):
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
