"""``no_graph``: a function that runs eagerly between two graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..errors import ArgumentError
from .interceptor import current_interceptor
from .journal import inside_transform, perform

__all__ = ["no_graph"]

F = TypeVar("F", bound=Callable[..., Any])


def no_graph(fn: F) -> F:
    """Mark a function that has to run eagerly: a host callback, a collective, a foreign kernel.

    A :func:`~gfxgraph.graphed` function that calls it becomes several graphs; ``fn`` runs between
    two of them, once in each call, with the tensors of that call as arguments. The runs of a
    capture repeat its result of the first call. It may return tensors on any device, plain values
    (each new value is a new path), or nothing. Outside of a graphed function it is an ordinary
    call.

    It runs at each call with all its effects. What it changes in Python beside itself, such as a
    list that it is given or an attribute that the rest of the function can read, no graph after it
    would see: then the function around it runs eagerly and says why. Let it return such values.

    A replay changes nothing in Python before it runs. So the function around it also runs eagerly
    if it changes something for a while, in which ``fn`` runs (an attribute, a setting, a mode of
    torch), if it gives ``fn`` an object that it makes, other than tensors, numbers, tuples, lists
    and dicts, or if it changes a list or a dict that ``fn`` returns.

    Args:
        fn: the function.

    Returns:
        A function that calls ``fn``.

    Raises:
        ArgumentError: ``fn`` is not callable.
    """
    if not callable(fn):
        raise ArgumentError(f"no_graph() takes a function, not {type(fn).__qualname__}.")

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        interceptor = current_interceptor()
        if interceptor is not None and not inside_transform():
            return interceptor.user_call(fn, args, kwargs)
        return perform(fn, None, *args, **kwargs)

    call.__gfxgraph_no_graph__ = True  # type: ignore[attr-defined]
    return cast(F, call)
