"""Plugins for vLLM and SGLang, and what they know of the graphs of a server."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graphs import Size as Size
    from .graphs import release_unused as release_unused
    from .graphs import sizes as sizes

__all__ = ["Size", "release_unused", "sizes"]


def __getattr__(name: str) -> Any:
    # The engines import this package in every process, also where the plugin does nothing.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import graphs

    return getattr(graphs, name)
