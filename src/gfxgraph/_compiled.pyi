"""The compiled part, which may be missing; see _compiled.c."""

from collections.abc import Callable

class Words:
    """Pairs of an address and the word that stood there, as the bytes of 64-bit words.

    Four are read at a time.
    """

    def __new__(cls, data: bytes, /) -> Words: ...
    def same(self) -> bool:
        """Whether each word stands where it stood."""

    def beside(self, launch: int, graph: int, stream: int, /) -> tuple[int, bool]:
        """What CUDA says when it launches a graph on a stream, and what :meth:`same` says.

        A thread of ours compares meanwhile; what it has not begun when the launch ends is compared
        then. ``launch`` is the address of CUDA's function. No other thread runs Python.
        """

class Kinds:
    """What lies in tensors of the kinds of others, as the bytes of 64-bit words.

    ``inner``: where the tensor of C++ stands in that of Python. ``keys``: where its dispatch keys
    stand in there; ``nested``: bits of these that no tensor may have of which ``every`` is asked.
    ``heads``: for each tensor its type, whether ``some`` is asked of it, and how many parts are
    its. ``parts``: an offset in the tensor of C++, the word that stands there, and bits of it that
    say nothing. ``some``: asked if all words are the same; ``every``: asked of all tensors if not.
    """

    def __new__(
        cls,
        inner: int,
        keys: int,
        nested: int,
        heads: bytes,
        parts: bytes,
        some: Callable[..., bool],
        every: Callable[..., bool],
        /,
    ) -> Kinds: ...
    def check(self, *tensors: object) -> bool:
        """Whether they are of these kinds, and all different."""

class Copy:
    """A function of the driver (by its address), and how many bytes it copies."""

    def __new__(cls, driver: int, size: int, /) -> Copy: ...
    def start(self, to: int, at: int, stream: int, /) -> int:
        """Copy to an address, from an address, on a stream; gives what the driver says."""

class Copies:
    """A kernel that copies to several places at once.

    ``launch``: the address of the driver's function that launches it. ``kernel``: what the driver
    calls it. ``places``: for each its address, a multiple of 16, and how many bytes.
    """

    def __new__(cls, launch: int, kernel: int, places: bytes, /) -> Copies: ...
    def start(self, stream: int, /, *at: int) -> int:
        """Copy on a stream, from as many addresses; gives what the driver says.

        -1: one of the addresses is no multiple of 16.
        """
