"""The partition of a key: whole columns against the published algorithm, key by key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.client.writing.partitioner import murmur2, murmur2_of, partitions_of, routed
from tests.examples import examples


def reference_of(key: bytes) -> int:
    """Return MurmurHash2, 32 bit, by Austin Appleby, with Kafka's seed."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    hashed = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        hashed = (hashed * multiplier & mask) ^ word
    if len(key) > whole:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15


def signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


KAFKAS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""From UtilsTest.testMurmur2 of Apache Kafka."""


def test_the_hashes_are_those_that_kafka_publishes():
    assert [signed(reference_of(key)) for key in KAFKAS] == list(KAFKAS.values())
    hashes = murmur2(pa.array(list(KAFKAS), pa.binary()))
    assert [signed(int(each)) for each in hashes] == list(KAFKAS.values())


keys = st.lists(st.binary(max_size=20) | st.binary(min_size=60, max_size=140), max_size=12)
KINDS = [pa.binary(), pa.large_binary()]


@pytest.mark.rule("the partition of a key", "client/writing/partitioner.py")
@settings(max_examples=examples(100))
@given(keys, st.integers(0, 3), st.integers(0, 3), st.sampled_from(KINDS))
def test_every_key_has_the_hash_of_the_reference_algorithm(keys, before, after, kind):
    """Also in a slice, and for empty keys."""
    array = pa.array([b"before"] * before + keys + [b"after"] * after, kind)
    hashes = murmur2(array.slice(before, len(keys)))
    assert hashes.tolist() == [reference_of(key) for key in keys]
    assert [murmur2_of(key) for key in keys] == hashes.tolist()


@settings(max_examples=examples(100))
@given(st.integers(0, 23), st.data(), st.integers(0, 3), st.sampled_from(KINDS))
def test_keys_of_one_length_have_the_hashes_of_the_reference_algorithm(length, data, before, kind):
    keys = data.draw(st.lists(st.binary(min_size=length, max_size=length), max_size=9))
    array = pa.array([b"odd"] * before + keys, kind).slice(before)
    assert murmur2(array).tolist() == [reference_of(key) for key in keys]


@settings(max_examples=examples(100))
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.integers(0, 3))
def test_hashing_does_not_read_past_the_last_key(keys, shift):
    """The buffer begins at any address and ends with the last key."""
    whole = pa.array(keys, pa.binary())
    size = sum(len(key) for key in keys)
    moved = pa.py_buffer(b"." * shift + b"".join(keys)).slice(shift, size)
    array = pa.Array.from_buffers(pa.binary(), len(keys), [None, whole.buffers()[1], moved])
    assert murmur2(array).tolist() == [reference_of(key) for key in keys]


def test_hashing_does_not_read_outside_of_the_buffer_for_invalid_offsets():
    offsets = pa.py_buffer(np.array([0, 400, 6], np.int32))
    broken = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abcdef")])
    with pytest.raises(IndexError):
        murmur2(broken)


@pytest.mark.parametrize("longest", [7, 8])
def test_keys_of_several_blocks_have_the_reference_hash(longest):
    """Blocks with keys of one length, and of several."""
    keys = [b"%07d" % number for number in range(9_000)] + [b"%0*d" % (longest, 7)] * 9_000
    assert murmur2(pa.array(keys)).tolist() == [reference_of(key) for key in keys]


@given(st.lists(st.text(max_size=9)), st.sampled_from([pa.string(), pa.large_string()]))
def test_a_text_has_the_hash_of_its_utf8(keys, kind):
    assert murmur2(pa.array(keys, kind)).tolist() == [reference_of(key.encode()) for key in keys]


@settings(max_examples=examples(100))
@given(
    st.lists(st.none() | st.binary(max_size=9), max_size=12),
    st.integers(0, 2),
    st.integers(1, 12) | st.just(10_000),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
def test_null_keys_go_to_the_keyless_partition(keys, before, partitions, kind):
    array = pa.array([b"before"] * before + keys, kind).slice(before)
    found = partitions_of(array, partitions, keyless=partitions - 1)
    assert found.tolist() == [
        partitions - 1 if key is None else (reference_of(key) & 0x7FFFFFFF) % partitions
        for key in keys
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_null_keys_among_texts_go_to_the_keyless_partition(kind):
    found = partitions_of(pa.array(["foobar", None, ""], kind), 7, keyless=3).tolist()
    assert found == [reference_of(b"foobar") % (1 << 31) % 7, 3, reference_of(b"") % (1 << 31) % 7]


def test_an_empty_key_is_a_key():
    assert partitions_of(pa.array([b""]), 1000, keyless=999).tolist() != [999]


def test_one_long_key_among_short_ones_has_the_reference_hash():
    keys = [b"k%d" % number for number in range(500)] + [b"x" * 4099]
    assert murmur2(pa.array(keys)).tolist() == [reference_of(key) for key in keys]


@pytest.mark.parametrize("partitions", [1, 2, 7])
@pytest.mark.parametrize("key", [None, b"", b"foobar", b"x" * 128, b"x" * 129])
def test_one_record_has_the_partition_that_it_has_among_others(key, partitions):
    keyless = partitions - 1
    alone = pa.record_batch({"key": pa.array([key], pa.binary())})
    among = pa.record_batch({"key": pa.array([b"foobar", key], pa.binary())})
    [(place, rows, first)] = routed(alone, ["key"], partitions, keyless)
    assert (rows, first) == (alone, 0)
    assert place == partitions_of(among["key"], partitions, keyless)[1]
