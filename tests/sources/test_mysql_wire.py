"""Rows of MySQL's binary protocol, in pieces of any size and with anything wrong in them."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.sources.mysql_wire import Block, Fields, WireError, decode, rows_of

END = b"\xfe\x00\x00\x02\x00"
ROWS = st.lists(st.tuples(st.none() | st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=400)), max_size=60)


def length(size: int) -> bytes:
    if size < 251:
        return bytes([size])
    mark, width = next((mark, width) for mark, width in ((0xFC, 2), (0xFD, 3), (0xFE, 8)) if size < 256**width)
    return bytes([mark]) + size.to_bytes(width, "little")


def row(number: int | None, text: bytes | None) -> bytes:
    nulls = (number is None) << 2 | (text is None) << 3
    values = b"" if number is None else number.to_bytes(4, "little")
    return bytes([0, nulls]) + values + (b"" if text is None else length(len(text)) + text)


def packets(bodies: list[bytes], first: int) -> bytes:
    numbered = enumerate(bodies, first)
    return b"".join(len(body).to_bytes(3, "little") + bytes([n & 255]) + body for n, body in numbered)


def reader(data: bytes, step: int = 2**20) -> Callable[[int], bytes]:
    held = io.BytesIO(data)
    return lambda size: held.read(min(size, step))


def read(data: bytes, *, first: int = 5, step: int = 2**20, rows: int = 10, size: int = 1000) -> list[Block]:
    return list(rows_of(reader(data, step), sequence=first, most_rows=rows, enough_bytes=size))


@given(ROWS, st.integers(1, 700), st.integers(0, 255), st.integers(1, 20), st.integers(1, 2000))
def test_rows_are_the_same_however_the_bytes_come(
    rows: list[tuple[int | None, bytes | None]], step: int, first: int, most: int, enough: int
) -> None:
    data = packets([*(row(*values) for values in rows), END], first)
    blocks = read(data, first=first, step=step, rows=most, size=enough)
    assert all(1 <= len(block.starts) <= most for block in blocks)
    found = []
    for block in blocks:
        numbers, texts = decode(block, [np.dtype("<i4"), None])
        assert isinstance(numbers, pa.Array)
        assert isinstance(texts, pa.Array)
        texts.validate(full=True)
        found += zip(numbers.to_pylist(), texts.to_pylist(), strict=True)
    assert found == rows


@given(ROWS, st.data())
def test_bytes_that_stop_anywhere_are_never_the_end(
    rows: list[tuple[int | None, bytes | None]], data: st.DataObject
) -> None:
    whole = packets([*(row(*values) for values in rows), END], 5)
    with pytest.raises(EOFError):
        read(whole[: data.draw(st.integers(0, len(whole) - 1))], size=10**9, rows=10**9)


@given(ROWS.filter(bool), st.data())
def test_a_byte_too_many_or_too_few_in_a_row_is_noticed(
    rows: list[tuple[int | None, bytes | None]], data: st.DataObject
) -> None:
    bodies = [row(*values) for values in rows]
    odd = data.draw(st.integers(0, len(bodies) - 1))
    bodies[odd] = data.draw(st.sampled_from([bodies[odd] + b"\x00", bodies[odd][:-1]]).filter(len))
    with pytest.raises(WireError):  # noqa: PT012
        for block in read(packets([*bodies, END], 5)):
            decode(block, [np.dtype("<i4"), None])


def test_a_lost_packet_is_noticed() -> None:
    good = [row(i, b"x") for i in range(4)]
    with pytest.raises(WireError, match="packet 6 was expected, 7 came"):
        read(packets(good[:1], 5) + packets([*good[2:], END], 7))


@pytest.mark.parametrize("number", [6, 0])
def test_an_error_of_the_server_is_handed_over_also_under_the_number_zero(number: int) -> None:
    error = b"\xff\x2b\x07#70100Connection was killed"
    with pytest.raises(WireError) as raised:
        read(packets([row(1, b"x")], 5) + packets([error], number))
    assert raised.value.packet == error


def test_a_long_row_that_looks_like_the_end_is_no_end() -> None:
    with pytest.raises(WireError, match="a row was expected"):
        read(packets([b"\xfe" + bytes(20), END], 5))


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"\x00\x00", b"\x00\x00\x01\x00\x00\x00\xff", b"\x00\x00\x01\x00\x00\x00\xfb"]
)
def test_what_is_no_row_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):  # noqa: PT012
        for block in read(packets([body, END], 5)):
            decode(block, [np.dtype("<i4"), None])


@pytest.mark.parametrize("size", [250, 251, 252, 65_535, 65_536, 2**24 - 10, 2**24 - 9, 2**24, 2**25])
def test_lengths_of_every_form_and_rows_of_several_packets(size: int) -> None:
    body = row(7, b"z" * size)
    full = 2**24 - 1
    pieces = [body[place : place + full] for place in range(0, len(body) + 1, full)]
    blocks = read(packets([row(1, b"a"), *pieces, row(2, b"b"), END], 254), first=254, step=2**22)
    texts = [text for block in blocks for text in decode(block, [np.dtype("<i4"), None])[1].to_pylist()]
    assert [len(text) for text in texts] == [1, size, 1]


def test_a_date_may_come_in_every_length() -> None:
    bodies = [bytes([0, 0, size, *range(1, size + 1)]) for size in (0, 4, 7, 11)] + [bytes([0, 4])]
    (block,) = read(packets([*bodies, END], 5))
    (fields,) = decode(block, [11])
    assert isinstance(fields, Fields)
    assert fields.null.tolist() == [False] * 4 + [True]
    assert [line.tolist() for line in fields.values] == [
        [*range(1, size + 1)] + [0] * (11 - size) for size in (0, 4, 7, 11, 0)
    ]
    with pytest.raises(WireError, match="longer"):
        decode(read(packets([bytes([0, 0, 12, *range(12)]), END], 5))[0], [11])
