"""Which words of a graph's nodes are addresses in its inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gfxgraph.device.nodes import Node, Parameters, Place
from gfxgraph.graph.moved import Input, NotProven, places_of

_START, _SIZE, _DISTANCE = 0x7FB5E5000000, 1 << 24, 0xD000200
_INPUT = Input(0, _START, _SIZE, _DISTANCE)


def _kernel(*words: int, name: str = "add", type: str = "kernel") -> Parameters:
    data = b"".join(word.to_bytes(8, "little") for word in words)
    return Parameters(Node(type, name, (), {}), data, (len(data),))


def _places(one: Parameters, again: Parameters, moved: Parameters) -> list[Place]:
    return places_of([one], [[again]], [moved], [_INPUT])


def test_a_word_that_moves_with_the_input_is_an_address_in_it() -> None:
    one, moved = _kernel(7, _START + 64), _kernel(7, _START + 64 + _DISTANCE)
    assert _places(one, one, moved) == [Place(0, 8, 0, 64)]


def test_addresses_in_the_pool_may_differ_between_captures() -> None:
    one = _kernel(_START, 0x7FB500000000)
    again = _kernel(_START, 0x7FB500200000)
    moved = _kernel(_START + _DISTANCE, 0x7FB500400000)
    assert _places(one, again, moved) == [Place(0, 0, 0, 0)]


def test_an_address_in_the_pool_that_moves_as_far_as_the_input_is_none_in_it() -> None:
    pool = 0x7FB500000000
    one, again = _kernel(pool), _kernel(pool + 0x200000)
    assert _places(one, again, _kernel(pool + _DISTANCE)) == []


@pytest.mark.parametrize(
    ("word", "after"),
    [
        (_START + 8, _START + 8),  # an address that stays
        (_START, _START + _DISTANCE + 512),  # one that moves too far
        (0x100000000 - _START, 0x100000000 - _START - _DISTANCE),  # a distance to the input
        (0x12345678, 0x12345679),  # packed
        (_START & ~1023, (_START + _DISTANCE) & ~1023),  # rounded
        (_START << 8 & (2**64 - 1), (_START + _DISTANCE) << 8 & (2**64 - 1)),  # unaligned
    ],
)
def test_whatever_else_depends_on_where_the_input_lies_refuses_the_graph(
    word: int, after: int
) -> None:
    if word % (1 << 64) != word:
        word, after = word % (1 << 64), after % (1 << 64)
    with pytest.raises(NotProven):
        _places(_kernel(word), _kernel(word), _kernel(after))


def test_half_a_word_of_padding_does_not_hide_the_other_half() -> None:
    one, again = _kernel(0xAAAA0000_00000001), _kernel(0xBBBB0000_00000001)
    assert _places(one, again, _kernel(0xCCCC0000_00000001)) == []
    with pytest.raises(NotProven):
        _places(one, again, _kernel(0xCCCC0000_00000002))


def test_another_kernel_for_the_moved_input_refuses_the_graph() -> None:
    one, other = _kernel(_START), _kernel(_START + _DISTANCE, name="add_unaligned")
    with pytest.raises(NotProven, match="differ at a kernel node add"):
        _places(one, one, other)


@pytest.mark.parametrize("type", ["host", "child graph", "conditional", "memory alloc"])
def test_a_node_whose_memory_is_not_known_refuses_the_graph(type: str) -> None:
    one = _kernel(type=type)
    with pytest.raises(NotProven, match=type):
        _places(one, one, one)


def test_a_copy_from_the_host_refuses_the_graph() -> None:
    one = _kernel(1, type="memcpy")
    one = replace(one, node=replace(one.node, details={"from": "host", "to": "device"}))
    with pytest.raises(NotProven, match="from host to device"):
        _places(one, one, one)


def test_a_memset_of_an_input_refuses_the_graph() -> None:
    one, moved = (_kernel(at, type="memset") for at in (_START, _START + _DISTANCE))
    with pytest.raises(NotProven, match="writes"):
        _places(one, one, moved)
