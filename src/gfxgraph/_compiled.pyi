"""The compiled part, which may be missing; see _compiled.c."""

class Words:
    """Pairs of an address and the word that stood there, as the bytes of 64-bit words."""

    def __new__(cls, data: bytes, /) -> Words: ...
    def same(self) -> bool:
        """Whether each word stands where it stood."""

class Copy:
    """A function of the driver (by its address), where it copies to, how many bytes."""

    def __new__(cls, driver: int, to: int, size: int, /) -> Copy: ...
    def start(self, at: int, stream: int, /) -> int:
        """Copy from an address, on a stream; gives what the driver says."""
