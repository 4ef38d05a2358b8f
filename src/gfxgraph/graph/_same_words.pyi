"""The compiled part, which may be missing; see _same_words.c."""

class Words:
    """Pairs of an address and the word that stood there, as the bytes of 64-bit words."""

    def __new__(cls, data: bytes, /) -> Words: ...
    def same(self) -> bool:
        """Whether each word stands where it stood."""
