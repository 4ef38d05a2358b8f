"""A dataclass as an argument: whatever it or its class becomes, as in eager execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gfxgraph

DEVICE = gfxgraph.device_type()


def four(first: float = 1.0) -> list[torch.Tensor]:
    return [torch.full((3,), first + n, device=DEVICE) for n in range(4)]


def made(**options: Any) -> Any:
    """A class of its own, which a test may change."""

    @dataclasses.dataclass(**options)
    class Given:
        image: torch.Tensor
        state: torch.Tensor
        goal: torch.Tensor
        mask: torch.Tensor

    return Given


def read(given: Any) -> torch.Tensor:
    return given.image + 10 * given.state + 100 * given.goal + 1000 * given.mask


class OtherDict(dict):  # type: ignore[type-arg]
    """It answers by its own code, which an attribute never asks."""

    def __getitem__(self, name: str) -> Any:
        return dict.__getitem__(self, name) * 2

    def __len__(self) -> int:
        return 4


def swapped_names(item: Any) -> None:
    item.__dict__ = dict(reversed(item.__dict__.items()))


def other_dict(item: Any) -> None:
    item.__dict__ = OtherDict(item.__dict__)


def with_more_in_other_dict(item: Any) -> None:
    item.__dict__ = OtherDict(item.__dict__, more=3.0)


def renamed(item: Any) -> None:
    item.other = item.__dict__.pop("mask")
    type(item).mask = item.other * 2


def given_a_property(item: Any) -> None:
    type(item).state = property(
        lambda self: self.__dict__["state"] * 3,
        lambda self, value: self.__dict__.__setitem__("state", value),
    )


def given_a_getter(item: Any) -> None:
    def get(self: Any, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return found * 5 if name == "goal" else found

    type(item).__getattribute__ = get


def of_a_subclass(item: Any) -> None:
    class More(type(item)):  # type: ignore[misc]
        @property
        def image(self) -> torch.Tensor:
            return self.state * 7

        @image.setter
        def image(self, value: torch.Tensor) -> None: ...

    item.__class__ = More


def one_tensor_twice(item: Any) -> None:
    item.goal = item.image


def more(item: Any) -> None:
    item.scale = 2.0


def another_shape(item: Any) -> None:
    item.mask = torch.ones(1, device=DEVICE)


CHANGES: list[Callable[[Any], None]] = [
    swapped_names,
    other_dict,
    with_more_in_other_dict,
    renamed,
    given_a_property,
    given_a_getter,
    of_a_subclass,
    one_tensor_twice,
    more,
    another_shape,
]


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_kept", [False, True], ids=["another object", "the same object"])
def test_a_dataclass_that_is_changed_is_read_as_in_eager_execution(change, is_kept):
    cls, graph = made(), gfxgraph.graphed(read)
    item = cls(*four())
    for _ in range(3):
        torch.testing.assert_close(graph(item), read(item))
        torch.testing.assert_close(graph(cls(*four())), read(cls(*four())))
    before = graph.stats().replays
    assert before >= 4
    if not is_kept:
        item = cls(*four())
    change(item)
    for _ in range(3):
        torch.testing.assert_close(graph(item), read(item))
    others = cls(*four(3.0)) if change is not renamed else item
    torch.testing.assert_close(graph(others), read(others))


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [{}, {"frozen": True}, {"slots": True}, {"slots": True, "frozen": True}]
)
def test_each_kind_of_dataclass_is_answered_by_one_graph(options):
    cls, graph = made(**options), gfxgraph.graphed(read)
    for n in range(6):
        item = cls(*four(float(n)))
        torch.testing.assert_close(graph(item), read(item))
    assert (graph.stats().captures, graph.stats().replays, graph.stats().fallbacks) == (1, 5, {})


def with_a_property() -> Any:
    @dataclasses.dataclass
    class Given:
        image: torch.Tensor
        scale: torch.Tensor

    Given.image = property(  # type: ignore[assignment]
        lambda self: self.__dict__["image"] * self.__dict__["scale"],
        lambda self, value: self.__dict__.__setitem__("image", value),
    )
    return Given


def with_a_getter() -> Any:
    @dataclasses.dataclass
    class Given:
        image: torch.Tensor
        scale: torch.Tensor

        def __getattribute__(self, name: str) -> Any:
            found = object.__getattribute__(self, name)
            return found * self.scale if name == "image" else found

    return Given


@torch.no_grad()
@pytest.mark.parametrize("make", [with_a_property, with_a_getter])
@pytest.mark.parametrize("first", [0.0, 1.0])  # where it is 0, nothing shows in the first call
def test_code_that_answers_for_a_field_is_asked_once(make, first):
    cls, graph = make(), gfxgraph.graphed(lambda given: given.image + 1)
    for n in range(6):
        item = cls(*four(first + n)[:2])
        torch.testing.assert_close(graph(item), item.image + 1)


@torch.no_grad()
@pytest.mark.parametrize("make", [with_a_property, with_a_getter])
def test_code_that_answers_for_a_field_of_a_result_is_asked_once(make):
    cls, graph = make(), None
    graph = gfxgraph.graphed(lambda image, scale: cls(image, scale))
    for n in range(4):
        image, scale = four(float(n))[:2]
        torch.testing.assert_close(graph(image, scale).image, cls(image, scale).image)


@torch.no_grad()
def test_a_field_that_is_left_out_is_that_of_the_class():
    @dataclasses.dataclass
    class Given:
        image: torch.Tensor
        scale: float = 2.0

    graph = gfxgraph.graphed(lambda given: given.image * given.scale)
    for n in range(8):
        item = Given(torch.full((3,), float(n), device=DEVICE), 3.0)
        if n % 2:
            del item.scale
        expected = item.image * item.scale
        torch.testing.assert_close(graph(item), expected)


@torch.no_grad()
def test_arguments_by_name_and_by_place_are_told_apart():
    cls = made()

    def fn(given: Any, other: Any = None, **kwargs: Any) -> torch.Tensor:
        return read(given) + (0 if other is None else read(other)) + sum(kwargs.values())

    graph = gfxgraph.graphed(fn)
    item, other = cls(*four()), cls(*four(2.0))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((item,), {}),
        ((item, other), {}),
        ((item,), {"other": other}),
        ((item,), {"more": 1.0}),
        ((item,), {"more": 1.0, "most": 2.0}),
        ((), {"given": item}),
    ]
    for _ in range(3):
        for args, kwargs in calls:
            torch.testing.assert_close(graph(*args, **kwargs), fn(*args, **kwargs))
    assert graph.stats().captures == len(calls) and not graph.stats().fallbacks
