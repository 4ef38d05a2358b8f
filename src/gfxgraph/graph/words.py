"""Words of memory, compared by the hundred in one call.

To ask an object for its class, or a tensor for its address, takes 50 to 80 ns, and a guard asks
hundreds. Each answer is a word in memory: in the head of an object, in the tensor of C++ behind
it, in its storage. NumPy gathers such words in about 1 ns each.

Where they lie is private to CPython and torch. So a process looks it up once, in objects whose
answers it knows, and asks in Python what it does not find.

A word may be read only while its owner lives. The guard holds what is in the stage ``HEAD``.
What they point to (``INNER``, and ``INMOST`` behind that) is read only after the pointer was
compared, in the same call of C code, so that no other thread runs Python in between. An operator of
torch that another thread has begun may still end there, and free a tensor: then a word is read
from memory that the process has, but that says something else.
"""

from __future__ import annotations

import array
import ctypes
import functools
import itertools
import logging
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import one_line
from ..stats import log
from . import raw

try:
    from .._compiled import Kinds, Words
except ImportError:  # optional
    Kinds = Words = None  # type: ignore[assignment,misc]

__all__ = [
    "FEW",
    "SameWords",
    "Word",
    "Words",
    "counting",
    "inside",
    "of_bases",
    "of_cell",
    "of_kind",
    "of_list",
    "of_object",
    "of_range",
    "of_storage",
    "of_view",
    "question",
    "question_of_kinds",
    "storage_of",
    "tells_all",
    "versions",
]

HEAD, INNER, INMOST = range(3)
Word: TypeAlias = tuple[int, int, int]
"""How far from an object that is held (``HEAD`` to ``INMOST``), the address, what stands there."""

FEW = 1 if Words is not None else 12
"""To ask less than so many objects takes no longer than to compare their words."""

# To ask less than so many tensors takes no longer than to compare their words.
_MANY = 4
_WORD = ctypes.sizeof(ctypes.c_void_p)
_ALL_BITS = (1 << 64) - 1
# The compiled part reads so many words of one stage at a time.
_BY = 4
# NumPy lets other threads run while it gathers 500 words or more.
_AT_ONCE = 400
# What a program can address. NumPy knows no array at 0, so it begins with the second word.
_FIRST, _END = _WORD, 1 << 47
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MAX_PAUSE = 64
# Tried on a GPU with 20,853 words; with fewer a launch leaves another thread less time.
_MANY_WORDS = 8000
# How often it is looked for where words lie: what was freed may leave a second copy of one behind
# what malloc() gives.
_TRIES = 8


class SameWords:
    """Words that a guard compares in each call.

    Args:
        words: the words as they were at the capture.
        read: gives them again, each after a comparison with what stood there at the capture;
            ``None``: not all of them.
        asked: whether all still holds, asked of the objects themselves.

    Attributes:
        same: whether each word is what it was.
        takes_long: whether to compare them takes so long that another thread is worth it.
    """

    def __init__(
        self,
        words: list[Word],
        read: Callable[[], list[Word] | None],
        asked: Callable[[], bool],
    ) -> None:
        self._read, self._asked = read, asked
        #: How many more times to ask before words are read again, and how many after that.
        self._waits, self._pause = 0, 1
        self.same = question(words)
        self.takes_long = Words is not None and len(words) >= _MANY_WORDS

    def beside(self, launch: int, graph: int, stream: int) -> tuple[int, bool]:
        """Launch a graph; gives what CUDA says, and whether each word is what it was.

        Another thread compares meanwhile. Python's lock is held until both are done: what another
        thread of the program frees before the graph is launched, and after its word was compared,
        would be noticed by nobody. So nothing may make the launch wait for such a thread.

        Args:
            launch: the address of CUDA's function that launches graphs.
            graph: the graph, as CUDA knows it.
            stream: the stream, on which the device has nothing to do.
        """
        return self.same.__self__.beside(launch, graph, stream)  # type: ignore[attr-defined, no-any-return]

    def hold(self) -> bool:
        """Ask, because a word has changed.

        Another word may say the same: a list was moved, or another tensor in C++ has taken the
        place of one. Then the new words are compared from now on. To read them takes as long as
        to ask some ten times, so where they differ all the time they are read less and less often.
        """
        self._waits -= 1
        words = self._read() if self._waits < 0 else None
        if not self._asked():
            return False
        if words is not None:
            self.same = question(words)
            self._waits, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE)
        return True


def question(words: Iterable[Word]) -> Callable[[], bool]:
    """A function that says whether each of these words stands where it stood."""
    stages: tuple[dict[int, int], ...] = ({}, {}, {})
    for stage, at, word in words:
        stages[stage][at] = word
    if Words is not None:
        pairs = array.array("Q")
        for words_of_stage in stages:
            found = sorted(words_of_stage.items())
            found += found[-1:] * (-len(found) % _BY)
            pairs.extend(itertools.chain.from_iterable(found))
        return Words(pairs.tobytes()).same
    return _question_of_numpy(stages)


def _question_of_numpy(stages: Sequence[dict[int, int]]) -> Callable[[], bool]:
    import numpy

    memory: Any = _memory()
    indices, expected = [], []
    for stage_words in stages:
        found = list(stage_words.items())
        for first in range(0, len(found), _AT_ONCE):
            part = found[first : first + _AT_ONCE]
            indices.append(_index(at for at, _ in part))
            expected.append(numpy.array([word for _, word in part], numpy.uint64).tobytes())
    if len(indices) == 1:
        (index,), (then,) = indices, expected
        return lambda: bool(memory[index].tobytes() == then)
    gather, same, in_bytes = memory.__getitem__, operator.eq, numpy.ndarray.tobytes
    # In C from the first to the last stage, and no further than the first that differs.
    return lambda: all(map(same, map(in_bytes, map(gather, indices)), expected))


def versions(dicts: Sequence[dict[Any, Any]]) -> Callable[[], bytes] | None:
    """A function that gives the versions of ``dicts``, which the caller holds.

    Up to Python 3.11 each change of a dict gives it a version that no dict had before. ``None``:
    this Python has no such numbers, or they do not tell of everything.
    """
    memory: Any = _memory()
    if memory is None or not _has_versions():
        return None
    index = _index(id(item) + _VERSION for item in dicts)
    return lambda: memory[index].tobytes()


def counting(advance: Callable[[], int], library: str) -> int | None:
    """The address of the one word that a library writes to by itself and that counts.

    Args:
        advance: counts on; gives what is counted then.
        library: a part of the name of its file.

    ``None``: there is no such word, or there are several.
    """
    memory: Any = _memory()
    if memory is None:
        return None
    try:
        with open("/proc/self/maps") as file:
            spans = [line.split() for line in file if library in line]
    except OSError:  # no Linux
        return None
    found: list[int] | None = None
    for _ in range(_COUNTS):
        now = advance()
        if found is None:
            found = []
            for first, last in (span[0].split("-") for span in spans if span[1] == "rw-p"):
                begin, end = ((int(at, 16) - _FIRST) // _WORD for at in (first, last))
                found += [begin + int(n) for n in (memory[begin:end] == now).nonzero()[0]]
        found = [n for n in found if int(memory[n]) == now]
    return found[0] * _WORD + _FIRST if found is not None and len(found) == 1 else None


_COUNTS = 50
_VERSION = 3 * _WORD  # behind the count of references, the class and the number of items


@functools.lru_cache(maxsize=1)
def _has_versions() -> bool:
    return sys.version_info < (3, 12) and tells_all(
        lambda space: lambda: _word(id(space) + _VERSION)
    )


def tells_all(watch: Callable[[dict[str, Any]], Callable[[], object]]) -> bool:
    """Whether what ``watch`` gives for a dict differs after each change of it, also after those
    for which the interpreter takes a shorter way, and not without one."""
    item = type("_Probe", (), {})()
    item.value = 0
    space = item.__dict__
    now = watch(space)

    def store() -> None:
        item.value += 1

    def tells(change: Callable[[], object]) -> bool:
        return now() != (change(), now())[1]

    return (
        all(tells(store) for _ in range(50))
        and tells(lambda: setattr(item, "other", 1))
        and tells(lambda: delattr(item, "other"))
        and tells(lambda: space.update(value=-1))
        and all(tells(store) for _ in range(50))
        and not tells(lambda: item.value)
    )


def of_object(
    item: object, kind: type, own: dict[str, Any] | None, ref: weakref.ref[Any] | None
) -> list[Word] | None:
    """``kind``, the class of ``item``, and ``own``, the dict of its attributes if it has one.

    ``ref``: all that keeps track of ``item``; ``None``: the guard holds it. ``None``, here and
    below: it is not known where that stands.
    """
    stage = HEAD if ref is None else INNER
    words = [] if ref is None else [(HEAD, id(ref) + 2 * _WORD, id(item))]
    words.append((stage, id(item) + _WORD, id(kind)))
    if own is not None:
        places = [id(item) + at for at in _places_of_dict(kind)]
        at = next((at for at in places if _word(at) == id(own)), None)
        if at is None:
            return None
        words.append((stage, at, id(own)))
    return _as_now(words)


def of_cell(cell: types.CellType, value: object) -> list[Word] | None:
    """The value of a variable that functions share; :data:`raw.MISSING`: it has none."""
    return _as_now([(HEAD, id(cell) + 2 * _WORD, 0 if value is raw.MISSING else id(value))])


def of_list(item: list[Any], held: Sequence[object]) -> list[Word] | None:
    """The items of a list."""
    if list.__len__(item) != len(held):
        return None
    words = [(HEAD, id(item) + 2 * _WORD, len(held))]
    if held:
        start = _word(id(item) + 3 * _WORD) or 0
        words.append((HEAD, id(item) + 3 * _WORD, start))
        words += [(INNER, start + n * _WORD, id(value)) for n, value in enumerate(held)]
    return _as_now(words)


def of_bases(cls: type, bases: tuple[type, ...]) -> list[Word] | None:
    """The order of lookups of a class."""
    at = _place_of_mro()
    return None if at is None else _as_now([(HEAD, id(cls) + at, id(bases))])


def of_range(start: int, words: Sequence[int]) -> list[Word] | None:
    """Words that follow one another in an object."""
    return _as_now([(HEAD, start + n * _WORD, word) for n, word in enumerate(words)])


def storage_of(tensor: torch.Tensor) -> StorageWeakRef | None:
    """The storage of a tensor of a known kind. While there is this weak reference, what describes
    the storage in C++ stays where it is; once the storage is gone, it says that there is no data.
    """
    is_known = _layout() is not None and _inner(tensor) is not None
    return StorageWeakRef(tensor.untyped_storage()) if is_known else None


def of_storage(tensor: torch.Tensor, data: int, storage: StorageWeakRef) -> list[Word] | None:
    """Of a tensor in ``storage`` whose data begins at ``data``: that the storage has its memory."""
    layout = _layout()
    if layout is None or not _is_in(tensor, storage) or tensor.data_ptr() != data:
        return None
    begin = data - int(tensor.storage_offset()) * tensor.element_size()
    return _as_now([(HEAD, storage.cdata + layout.data, begin)])


def of_view(tensor: torch.Tensor, storage: StorageWeakRef) -> list[Word] | None:
    """That a tensor is in ``storage``, and where in there it begins."""
    layout, inner = _layout(), _inner(tensor)
    if layout is None or inner is None or not _is_in(tensor, storage):
        return None
    words = [(HEAD, id(tensor) + layout.inner, inner)]
    words.append((INNER, inner + layout.storage, storage.cdata))
    words.append((INNER, inner + layout.offset, int(tensor.storage_offset())))
    return _as_now(words)


def _is_in(tensor: torch.Tensor, storage: StorageWeakRef) -> bool:
    return _inner(tensor) is not None and tensor.untyped_storage()._cdata == storage.cdata


def of_kind(tensor: torch.Tensor) -> list[Word] | None:
    """The type, dtype, device, shape and strides of a tensor; whether it requires grad, and is
    conjugated or negated."""
    layout, inner, held = _layout(), _inner(tensor), inside(tensor)
    # A view requires grad where what it is a view of does, which has words of its own.
    if layout is None or inner is None or held is None or tensor._is_view():
        return None
    words = [(HEAD, id(tensor) + _WORD, id(type(tensor)))]
    words.append((HEAD, id(tensor) + layout.inner, inner))
    words += [(INNER, inner + at, word) for at, word in held.items()]
    if held[layout.autograd]:
        # What requires grad itself does so whatever it was computed by.
        by = () if tensor.requires_grad and tensor.is_leaf else (layout.grad_fn,)
        words += _read_as(INMOST, held[layout.autograd], (layout.requires_grad, *by))
    return _as_now(words)


def inside(tensor: torch.Tensor) -> dict[int, int] | None:
    """Offset in the tensor of C++ -> word, for all that says its kind; and where autograd keeps
    what it knows of the tensor (0: it knows nothing, so the tensor does not require grad)."""
    layout, inner = _layout(), _inner(tensor)
    if layout is None or inner is None or tensor.dim() > _MAX_INLINE:
        return None
    dims = range(0, tensor.dim() * _WORD, _WORD)
    sizes = [layout.shape + _WORD + at for at in dims]
    strides = [layout.strides + at for at in dims]
    # What lies behind the offset says the rest.
    rest = range(layout.offset + _WORD, layout.end, _WORD)
    found = _read_as(INNER, inner, (layout.autograd, layout.shape, *sizes, *strides, *rest))
    held = {at - inner: word for _, at, word in found}
    then = [held[at] for at in (layout.shape, *sizes, *strides)]
    return held if then == [tensor.dim(), *tensor.shape, *tensor.stride()] else None


def question_of_kinds(
    tensors: Sequence[torch.Tensor], guards: Callable[[Sequence[torch.Tensor]], Callable[..., bool]]
) -> Callable[..., bool] | None:
    """The answer of ``guards(tensors)``, in less time: it compares words, and asks few tensors.

    Args:
        tensors: what others are compared with.
        guards: gives a function of as many tensors: are they of the kind of its own, all different,
            and seen in the same modes of torch?

    Where words differ, all tensors are asked: they may say the same. Otherwise the first of each
    set of dispatch keys is asked, through which alone a mode shows, and those that autograd knows.
    Where that is not quicker, all are asked. None is asked where one is nested: torch's guards end
    the process there. ``None``: it is not known where the words stand.
    """
    layout = _layout() if Kinds is not None else None
    if layout is None or any(type(tensor) not in _PLAIN for tensor in tensors):
        return None
    known = [inside(tensor) for tensor in tensors]
    keys = [torch._C._dispatch_keys(tensor).raw_repr() for tensor in tensors]
    is_asked = [
        keys.index(key) == n or held is None or held[layout.autograd] != 0
        for n, (key, held) in enumerate(zip(keys, known, strict=True))
    ]
    if len(tensors) < _MANY or 2 * sum(is_asked) > len(tensors):
        known, is_asked = [None] * len(tensors), [True] * len(tensors)
    heads: list[int] = []
    parts: list[int] = []
    for tensor, held, asks in zip(tensors, known, is_asked, strict=True):
        words = [(layout.keys, 0, ~layout.nested & _ALL_BITS)]
        if held is not None:
            words = [(at, word, layout.noise.get(at, 0)) for at, word in held.items()]
            words = [part for part in words if part[0] != layout.autograd or not part[1]]
        heads += [id(type(tensor)), asks, len(words)]
        parts += itertools.chain.from_iterable(words)
    of_each, of_all = array.array("Q", heads).tobytes(), array.array("Q", parts).tobytes()
    some, every = guards(list(itertools.compress(tensors, is_asked))), guards(tensors)
    where = layout.inner, layout.keys, layout.nested
    return Kinds(*where, of_each, of_all, some, every).check


class _Layout(NamedTuple):
    """Offsets in bytes.

    ``noise``: by offset in the tensor of C++, the bits that differ between tensors of one kind.
    ``nested``: the bits of ``keys`` that a nested tensor has.
    ``inner``: of the tensor of C++, in the one of Python. In that of C++: ``storage``, ``offset``
    (of the data in there), ``autograd``, ``keys`` (of the dispatcher), ``shape`` (the number of
    dimensions, and behind it their sizes), ``strides``, and the ``end`` of what describes the
    tensor. ``data``: of the address, in the storage. ``requires_grad`` and ``grad_fn``: in what
    autograd holds.
    """

    noise: dict[int, int]
    nested: int
    inner: int
    storage: int
    offset: int
    autograd: int
    keys: int
    shape: int
    strides: int
    end: int
    data: int
    requires_grad: int
    grad_fn: int


_MAX_INLINE = 5
"""A tensor with more dimensions keeps their sizes elsewhere."""


@functools.lru_cache(maxsize=1)
def _memory() -> Any:
    """All of memory as words; ``None``: it cannot be read so."""
    # Without a lock around all of Python a word could change hands while it is read.
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.implementation.name != "cpython" or not has_lock or _WORD != 8:
        return None
    try:
        import numpy

        words = (ctypes.c_uint64 * ((_END - _FIRST) // _WORD)).from_address(_FIRST)
        memory: Any = numpy.frombuffer(memoryview(words), numpy.uint64)
    except (ImportError, MemoryError, ValueError, OverflowError) as error:
        log(logging.DEBUG, "memory_not_compared", because=one_line(error))
        return None
    item = object()
    known = id(item) + _WORD
    is_right = int(memory[(known - _FIRST) // _WORD]) == id(object)
    return memory if is_right else None


def _index(addresses: Iterable[int]) -> Any:
    import numpy

    return numpy.array([(at - _FIRST) // _WORD for at in addresses])


def _read(at: int, count: int) -> list[int]:
    """Words from an address on; none: they cannot be read."""
    memory = _memory()
    if memory is None or at % _WORD or not _FIRST <= at < _END - count * _WORD:
        return []
    first = (at - _FIRST) // _WORD
    return [int(word) for word in memory[first : first + count]]


def _word(at: int) -> int | None:
    """The word at an address; ``None``: it cannot be read."""
    memory = _memory()
    if memory is None or at % _WORD or not _FIRST <= at < _END - _WORD:
        return None
    return memory.item((at - _FIRST) // _WORD)  # type: ignore[no-any-return]


def _read_as(stage: int, start: int, offsets: Iterable[int]) -> list[Word]:
    return [(stage, start + at, _word(start + at) or 0) for at in offsets]


def _as_now(words: list[Word]) -> list[Word] | None:
    """``words``, if they say what stands there now."""
    return words if all(_word(at) == word for _, at, word in words) else None


def _inner(tensor: torch.Tensor) -> int | None:
    """The address of the tensor of C++; ``None``: it may be of a kind that is not known."""
    is_plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
    if not is_plain or tensor.device.type not in ("cpu", "cuda"):
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    return int(tensor._cdata)


def _places_of_dict(kind: type) -> tuple[int, ...]:
    """Where an object may have the pointer to the dict of its attributes."""
    if sys.version_info >= (3, 11) and _flags(kind) & _MANAGED_DICT:
        return -3 * _WORD, -4 * _WORD
    offset = _dict_offset(kind)
    return (offset,) if offset > 0 else ()


# Asked of no metaclass, which may be the program's.
_flags: Callable[[type], int] = type.__dict__["__flags__"].__get__
_dict_offset: Callable[[type], int] = type.__dict__["__dictoffset__"].__get__
_basic_size: Callable[[type], int] = type.__dict__["__basicsize__"].__get__
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT: the pointer stands before the object


@functools.lru_cache(maxsize=1)
def _place_of_mro() -> int | None:
    classes = [type("Probe", (base,), {}) for base in (object, dict, torch.nn.Module)]
    size = _basic_size(type) // _WORD
    found = [
        {n for n, word in enumerate(_read(id(cls), size)) if word == id(raw.mro(cls))}
        for cls in classes
    ]
    common = set.intersection(*found)
    return _WORD * common.pop() if len(common) == 1 else None


@functools.lru_cache(maxsize=1)
def _layout() -> _Layout | None:
    because = ""
    for _ in range(_TRIES):
        try:
            with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
                return _found_layout()
        except (LookupError, ValueError, OSError, AttributeError, RuntimeError) as error:
            because = one_line(error)
    log(logging.DEBUG, "tensors_not_compared_in_memory", because=because)
    return None


def _found_layout() -> _Layout:
    """Look for all of it in tensors whose answers are known.

    Raises:
        LookupError: something is not found, or found in several places.
    """
    if _memory() is None:
        raise LookupError("memory cannot be read")
    sizes, strides, offset = (1009, 13, 17), (1231, 19, 1), 90001
    base = torch.empty(2_000_000, dtype=torch.int8)
    probe = base.as_strided(sizes, strides, offset)
    start, storage = probe._cdata, probe.untyped_storage()
    words = _block(start)
    inner = _only(_read(id(probe), _basic_size(torch.Tensor) // _WORD), [start])
    shape = _only(words, sizes) - 1
    stride = _only(words, strides)
    # The inline places of both are of fixed length, one behind the other.
    if stride - shape != 1 + _MAX_INLINE or words[shape] != len(sizes):
        raise LookupError("shapes lie elsewhere")
    at_offset = _only(words, [offset])
    end, noise = _end_of(at_offset)
    data = _only(_block(storage._cdata), [storage.data_ptr()], first=True)
    gone = StorageWeakRef(torch.empty(1).untyped_storage())
    if _word(gone.cdata + data * _WORD) != 0:
        raise LookupError("a storage that is gone keeps the address of its data")
    autograd, requires_grad, grad_fn = _of_autograd(shape)
    keys = _only(words, [torch._C._dispatch_keys(probe).raw_repr()])
    nested = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensor).raw_repr()
    found = (inner, _only(words, [storage._cdata]), at_offset, autograd, keys, shape, stride, end)
    places = (_WORD * n for n in (*found, data, requires_grad, grad_fn))
    return _Layout(noise, nested, *places)


def _end_of(at_offset: int) -> tuple[int, dict[int, int]]:
    """Where the description of a tensor ends: all that tells two kinds apart lies before. And its
    noise, see :class:`_Layout`."""
    plain = torch.empty(4, dtype=torch.complex64)
    others = [
        torch.empty(4, dtype=torch.int32),  # another dtype
        torch.empty(4, dtype=torch.complex64, device="meta"),
        plain.conj(),
        torch._neg_view(plain),
    ]
    with torch.inference_mode():
        others.append(torch.empty(4, dtype=torch.complex64))
    words, end = _block(plain._cdata), 0
    # What differs between alike tensors is no part of what they are: what no constructor writes.
    twins = [_block(twin._cdata) for fill in (0, 0xFF) for twin in _twins(plain, fill)]
    noise = [
        functools.reduce(operator.or_, (words[n] ^ word for word in of_all))
        for n, of_all in enumerate(zip(*twins, strict=False))
        if n < len(words)
    ]
    of_others = [_block(other._cdata) for other in others]
    for now in of_others:
        alike = [n for n in range(at_offset + 1, min(len(now), len(noise))) if not noise[n]]
        end = max([end, *(n + 1 for n in alike if words[n] != now[n])])
    for now in of_others:
        if not any((words[n] ^ now[n]) & ~noise[n] for n in range(at_offset + 1, end)):
            raise LookupError("two kinds of tensors look alike in memory")
    return end, {n * _WORD: noise[n] for n in range(at_offset + 1, end) if noise[n]}


def _twins(tensor: torch.Tensor, fill: int) -> list[torch.Tensor]:
    """Tensors like ``tensor``; one is made where each byte was ``fill``, if malloc() lets us."""
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = (ctypes.c_void_p,), None
    size, twins = _WORD * len(_block(tensor._cdata)), []
    for _ in range(_TRIES):
        blocks = [libc.malloc(size) for _ in range(_TRIES)]
        for block in filter(None, blocks):
            ctypes.memset(block, fill, size)
        for block in blocks:
            libc.free(block)
        twins += [torch.empty_like(tensor) for _ in blocks]
        if any(twin._cdata in blocks for twin in twins):
            break
    return twins


def _of_autograd(shape: int) -> tuple[int, int, int]:
    """Where a tensor has what autograd knows; and in there, whether it requires grad, and what it
    was computed by."""
    with torch.no_grad():
        plain, leaf = torch.zeros(3), torch.zeros(3)
    leaf.requires_grad_(True)
    computed = leaf * 2
    grad_fn: Any = computed.grad_fn
    # The object of Python points to the node.
    head = _read(id(grad_fn), _basic_size(type(grad_fn)) // _WORD)
    nodes = {word for word in head[2:] if word}  # behind its count of references and its class
    candidates = []
    for at in range(shape):
        none, own, others = (_block(t._cdata)[at] for t in (plain, leaf, computed))
        if none or not own or not others:
            continue
        with_grad = _block(own)
        leaf.requires_grad_(False)
        without = _block(own)
        leaf.requires_grad_(True)
        toggled = [n for n, word in enumerate(with_grad) if word != without[n]]
        # Of a shared pointer the second word is its count.
        by = [n for n, word in enumerate(_block(others)) if word in nodes and not with_grad[n]]
        if len(toggled) == 1 and by and by[-1] - by[0] < 2:
            candidates.append((at, toggled[0], by[0]))
    (found,) = candidates
    return found


def _only(words: Sequence[int], wanted: Sequence[int], first: bool = False) -> int:
    """Where ``wanted`` stands."""
    length = len(wanted)
    found = [n for n in range(len(words)) if list(words[n : n + length]) == list(wanted)]
    if not found or (len(found) > 1 and not first):
        raise LookupError(f"{wanted} stands in {len(found)} places")
    return found[0]


def _block(start: int) -> list[int]:
    """The words of what ``malloc()`` gave at an address."""
    size = ctypes.CDLL(None).malloc_usable_size
    size.argtypes, size.restype = (ctypes.c_void_p,), ctypes.c_size_t
    return _read(start, size(start) // _WORD)
