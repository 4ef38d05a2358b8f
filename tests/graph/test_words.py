"""Words of memory say what asking the objects would say."""

import array
import gc
import tracemalloc
import weakref

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.graph import words
from gfxgraph.graph.guard import Guard
from gfxgraph.graph.places import Attributes, TypeOf

pytestmark = pytest.mark.skipif(
    words._memory() is None or words._layout() is None,
    reason="this Python or this torch keeps its objects elsewhere",
)


@pytest.fixture(autouse=True, params=["compiled", "numpy"])
def compared_by(request, monkeypatch):
    """Each sentence holds with the compiled part, and without it."""
    if request.param == "numpy":
        monkeypatch.setattr(words, "Words", None)
    elif words.Words is None:
        pytest.skip("there is no compiled part")
    return request.param


def asked(found):
    assert found is not None
    return words.question(found)


CHANGES_OF_KIND = {
    "shape": lambda t: t.resize_(3, 4),
    "rank": lambda t: t.unsqueeze_(0),
    "strides": lambda t: t.t_(),
    "requires_grad": lambda t: t.requires_grad_(not t.requires_grad),
    "dtype": lambda t: setattr(t, "data", t.data.double()),
    "class": lambda t: setattr(t, "__class__", nn.Parameter),
    "conjugated": lambda t: setattr(t, "data", t.data.to(torch.complex64).conj()),
    "computed with grad": lambda t: t.mul_(torch.ones(4, 4, requires_grad=True)),
    "swapped": lambda t: torch.utils.swap_tensors(t, torch.zeros(2)),
}


@pytest.mark.parametrize("change", CHANGES_OF_KIND)
@pytest.mark.parametrize("with_autograd", [False, True])
def test_a_tensor_of_another_kind_is_noticed(change, with_autograd):
    tensor = torch.zeros(4, 4)
    if with_autograd:
        tensor.requires_grad_(True).requires_grad_(False)
    is_same = asked(words.of_kind(tensor))
    tensor.add_(1)
    _ = tensor * 2
    assert is_same()
    CHANGES_OF_KIND[change](tensor)
    assert not is_same()


@pytest.mark.parametrize("change", ["requires_grad", "dtype", "conjugated", "swapped"])
def test_another_kind_of_tensor_that_requires_grad_is_noticed(change):
    tensor = torch.zeros(4, 4, requires_grad=True)
    is_same = asked(words.of_kind(tensor))
    with torch.no_grad():
        tensor.add_(1)
    (tensor * 2).sum().backward()
    assert is_same()
    CHANGES_OF_KIND[change](tensor)
    assert not is_same()


def test_a_view_that_requires_grad_because_its_base_does_now_is_noticed():
    base = torch.zeros(4, 4)
    tensors = [torch.zeros(4) for _ in range(14)] + [base[0]]
    guard = Guard({}, (), (), {})
    for n, tensor in enumerate(tensors):
        guard.watch(Attributes(f"t{n}", tensor))
    guard.complete()
    assert guard.places_hold()
    base.requires_grad_(True)
    assert tensors[-1].requires_grad and not guard.places_hold()


def test_a_gradient_that_comes_and_goes_is_no_other_kind_of_tensor():
    weight = nn.Parameter(torch.ones(3))
    is_same = asked(words.of_kind(weight))
    weight.sum().backward()
    assert weight.grad is not None and is_same()


CHANGES_OF_ADDRESS = {
    "data": lambda t: setattr(t, "data", t.data.clone()),
    "set_": lambda t: t.set_(torch.zeros(4)),
    "freed": lambda t: t.untyped_storage().resize_(0),
    "moved within": lambda t: t.set_(t.untyped_storage(), 1, (3,)),
    "swapped": lambda t: torch.utils.swap_tensors(t, torch.zeros(4)),
}


def lies_there(tensor):
    storage = words.storage_of(tensor)
    is_there = asked(words.of_storage(tensor, tensor.data_ptr(), storage))
    is_in = asked(words.of_view(tensor, storage))
    return lambda keeps=storage: is_there() and is_in()


@pytest.mark.parametrize("change", CHANGES_OF_ADDRESS)
def test_a_tensor_that_moves_is_noticed(change):
    tensor = torch.zeros(4)
    is_same = lies_there(tensor)
    tensor.add_(1)
    assert is_same()
    CHANGES_OF_ADDRESS[change](tensor)
    assert not is_same()


@pytest.mark.parametrize("change", CHANGES_OF_ADDRESS)
def test_a_tensor_that_moves_is_noticed_while_somebody_has_its_old_memory(change):
    tensor = torch.zeros(4)
    others = tensor.untyped_storage(), torch.zeros(4)
    is_same = lies_there(tensor)
    CHANGES_OF_ADDRESS[change](tensor)
    assert others and not is_same()


def test_a_view_is_compared_with_its_offset():
    base = torch.arange(12.0)
    assert lies_there(base[5:])()


def test_memory_that_is_gone_is_noticed_and_nobody_keeps_it():
    tensor = torch.zeros(1 << 16)
    storage = words.storage_of(tensor)
    is_there = asked(words.of_storage(tensor, tensor.data_ptr(), storage))
    assert is_there()
    del tensor
    assert storage.expired() and not is_there()
    others = [torch.ones(1 << 16) for _ in range(8)]  # one may lie where it was
    assert others and not is_there()


@torch.no_grad()
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_guard_tells_memory_that_is_gone_before_a_launch_and_what_moved_after_it(is_kept):
    tensors = [torch.zeros(4) for _ in range(14)]
    guard = Guard({}, (), (), {})
    for n, tensor in enumerate(tensors):
        guard.watch_memory(f"t{n}", tensor)
    guard.complete()
    assert guard.memory_holds() and guard.places_hold()
    kept = tensors[5].untyped_storage() if is_kept else None
    tensors[5].data = torch.ones(4)
    assert guard.memory_holds() == (kept is not None)
    assert not guard.places_hold() and guard.changes() == ["t5"] and not guard.holds()


@torch.no_grad()
def test_a_tensor_in_another_storage_on_the_same_memory_is_asked_where_it_lies():
    tensors = [torch.arange(4.0) for _ in range(14)]
    guard = Guard({}, (), (), {})
    for n, tensor in enumerate(tensors):
        guard.watch_memory(f"t{n}", tensor)
    guard.complete()
    old = tensors[5].untyped_storage()
    tensors[5].data = torch.from_numpy(tensors[5].numpy())
    for _ in range(3):
        assert guard.memory_holds() and guard.places_hold()
    tensors[5].share_memory_()  # the same storage, elsewhere
    assert old.nbytes() and not guard.holds() and guard.changes() == ["t5"]


@torch.no_grad()
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(
    "move",
    [
        lambda weight: setattr(weight, "data", weight.data * 2),
        lambda weight: setattr(weight, "data", weight.data.flip(0)),
        lambda weight: torch.utils.swap_tensors(weight, nn.Parameter(weight.detach() * 2)),
        lambda weight: weight.set_((weight * 2).untyped_storage(), 0, weight.shape),
    ],
)
def test_a_weight_that_moves_is_never_read_where_it_was(move, is_kept):
    model = layers().to(gfxgraph.device_type())
    graph, x = gfxgraph.graphed(model), torch.ones(2, 4, device=gfxgraph.device_type())
    for _ in range(3):
        graph(x)
    assert graph.stats().replays == 2
    kept = [weight.untyped_storage() for weight in model.parameters()] if is_kept else []
    for weight in model.parameters():
        move(weight)
        torch.testing.assert_close(graph(x), model(x))
    assert not kept or all(storage.nbytes() for storage in kept)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1, 1, 1, 1, 1, 1),
        torch.zeros(2, 2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.nn.UninitializedParameter(),
    ],
    ids=["six dimensions", "sparse", "meta", "uninitialized"],
)
def test_what_lies_in_memory_in_another_way_has_to_be_asked(tensor):
    assert words.of_kind(tensor) is None


class Plain:
    pass


class Other:
    pass


class Slotted:
    __slots__ = ("__weakref__", "x")


@pytest.mark.parametrize("kind", [Plain, nn.Linear])
def test_another_class_or_dict_of_attributes_is_noticed(kind):
    def made():
        item = kind(2, 2) if kind is nn.Linear else kind()
        item.extra = 1
        own = item.__dict__
        ref = weakref.ref(item)
        return item, ref, asked(words.of_object(item, type(item), own, ref))

    item, _ref, is_same = made()
    item.extra, item.more = 2, 3
    assert is_same()
    item.__dict__ = dict(item.__dict__)
    assert not is_same()
    item, _ref, is_same = made()
    item.__class__ = Other if kind is Plain else nn.Identity
    assert not is_same()


def test_an_object_that_is_gone_is_noticed():
    item = Slotted()
    ref = weakref.ref(item)
    is_same = asked(words.of_object(item, Slotted, None, ref))
    assert is_same()
    del item
    gc.collect()
    assert ref() is None and not is_same()


def test_lists_cells_and_bases_are_compared():
    held = [object(), object()]
    items = list(held)
    of_items = asked(words.of_list(items, held))
    items[1], kept = object(), items[1]
    assert not of_items()
    items[1] = kept
    assert of_items()
    items.append(None)
    assert not of_items()
    items.pop()
    items[:] = [*held, *range(1000)]  # moved
    assert not of_items()

    bound = object()

    def inner():
        return bound

    (cell,) = inner.__closure__
    of_cell = asked(words.of_cell(cell, bound))
    assert of_cell()
    bound = object()
    assert not of_cell()

    class Derived(Plain):
        pass

    of_bases = asked(words.of_bases(Derived, Derived.__mro__))
    assert of_bases()
    Derived.__bases__ = (Other,)
    assert not of_bases()


def test_more_words_than_numpy_reads_without_letting_threads_run_are_read_in_parts():
    held = [object() for _ in range(3 * words._AT_ONCE)]
    items = list(held)
    is_same = asked(words.of_list(items, held))
    assert is_same()
    items[-1] = None
    assert not is_same()


@pytest.mark.parametrize("changed", [None, 0, 1, 499, 1999])
def test_a_word_that_changes_is_noticed_wherever_it_stands(changed):
    memory = array.array("Q", range(2000))
    start, _ = memory.buffer_info()
    is_same = asked(words.of_range(start, memory))
    if changed is not None:
        memory[changed] ^= 1 << 63
    assert is_same() == (changed is None)
    memory[:] = array.array("Q", range(2000))
    assert is_same()


def test_what_a_pointer_leads_to_is_not_read_after_the_pointer_has_changed():
    """Behind the old one there is memory that nobody has."""
    pointer, value = array.array("Q", [8]), 7
    found = [(words.HEAD, pointer.buffer_info()[0], 16), (words.INNER, 16, value)]
    assert not words.question(found)()


def test_the_compiled_part_refuses_what_are_no_pairs_of_words(compared_by):
    if compared_by == "numpy":
        pytest.skip("it is not used")
    with pytest.raises(ValueError, match="pairs"):
        words.Words(b"12345678")
    for wrong in ((), (b"", b""), ("text",), (3,)):
        with pytest.raises(TypeError):
            words.Words(*wrong)
    with pytest.raises(TypeError):
        words.Words(data=b"")
    assert words.Words(b"").same()


def test_questions_that_go_leave_no_memory_behind(compared_by):
    memory = array.array("Q", range(20_000))
    found = words.of_range(memory.buffer_info()[0], memory)
    for _ in range(3):
        words.question(found)
    tracemalloc.start()
    try:
        for _ in range(10):
            words.question(found)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("python", [False, True], ids=["in memory", "asked"])
def test_a_guard_notices_the_same_with_and_without_words(python, monkeypatch):
    if python:
        monkeypatch.setattr(words, "_memory", lambda: None)
        monkeypatch.setattr(words, "_layout", lambda: None)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)]).to(gfxgraph.device_type())
    model.requires_grad_(False)
    graph = gfxgraph.graphed(model)
    x = torch.ones(2, 4, device=gfxgraph.device_type())
    changes = [
        lambda: None,
        lambda: setattr(model[3].weight, "data", model[3].weight.data.t()),
        lambda: setattr(model[5].bias, "data", model[5].bias.data + 1),
        lambda: setattr(model[1], "__class__", nn.Identity),
        lambda: setattr(model[2], "__dict__", {**model[7].__dict__}),
        lambda: model[4].weight.requires_grad_(True),
    ]
    graph(x), graph(x)
    for n, change in enumerate(changes):
        before = graph.stats()
        change()
        torch.testing.assert_close(graph(x), model(x))
        assert (graph.stats().replays > before.replays) == (n == 0)


def test_the_places_are_found_again_in_a_process_full_of_what_was_freed():
    for _ in range(3):
        junk = [torch.randn(3, requires_grad=True) * 2 for _ in range(200)]
        del junk
        words._layout.cache_clear()
        assert words._layout() is not None


def layers(count=14):
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)]).requires_grad_(False)


def replaced(model):
    """Each tensor in C++ is another one, at the same address."""
    for weight in model.parameters():
        torch.utils.swap_tensors(weight, nn.Parameter(weight.detach(), False))


def given_autograd(model):
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)


def moved(model):
    model.helper.extend([None] * 5000)
    del model.helper[14:]


@pytest.mark.parametrize("change", [replaced, given_autograd, moved])
@torch.no_grad()
def test_words_that_say_the_same_in_another_place_are_compared_from_then_on(change):
    device = gfxgraph.device_type()
    model = layers().to(device)
    model.helper = [object() for _ in range(14)]

    def fn(x):
        for item, layer in zip(model.helper, model, strict=True):
            x = layer(x) if item is not None else x
        return x

    graph, x = gfxgraph.graphed(fn), torch.ones(2, 4, device=device)
    graph(x), graph(x)
    (entry,) = graph._dispatcher.entries.all()
    guard = entry.captured.guard
    assert guard.places_hold() and guard.memory_holds()
    change(model)
    torch.testing.assert_close(graph(x), fn(x))
    assert graph.stats().captures == 1
    questions = (guard.places_hold, guard.memory_holds)
    found = [v for ask in questions for v in vars_of(ask) if type(v) is words.SameWords]
    assert len(found) == 2 and all(v.same() for v in found)


def vars_of(ask):
    return ask.__globals__.values()


@torch.no_grad()
def test_a_tensor_that_cannot_be_compared_any_more_is_still_noticed_to_move():
    class Other(torch.Tensor):
        pass

    tensors = [torch.zeros(4) for _ in range(14)]
    guard = Guard({}, (), (), {})
    for n, tensor in enumerate(tensors):
        guard.watch_memory(f"t{n}", tensor)
    guard.complete()
    tensors[5].__class__ = Other
    torch.utils.swap_tensors(tensors[3], tensors[3].detach())  # the words are read again
    assert guard.memory_holds()
    tensors[5].data = torch.ones(4)
    assert not guard.memory_holds() and guard.changes() == ["t5"]


def test_words_that_change_in_each_call_are_read_again_less_and_less_often():
    item, reads = Plain(), []

    def read():
        reads.append(None)
        return [(words.HEAD, id(item) + 8, 1)]  # no class is there

    same = words.SameWords(read(), read, lambda: True)
    for _ in range(1000):
        assert not same.same() and same.hold()
    assert 10 < len(reads) < 30


@torch.no_grad()
def test_a_tensor_that_moves_before_the_guard_is_complete_is_noticed():
    tensors = [torch.zeros(4) for _ in range(14)]
    guard = Guard({}, (), (), {})
    for n, tensor in enumerate(tensors):
        guard.watch_memory(f"t{n}", tensor)
    tensors[5].data = torch.ones(4)
    guard.complete()
    assert not guard.memory_holds() and guard.changes() == ["t5"]


def test_a_class_that_changes_before_the_words_are_read_is_noticed():
    item = Plain()
    item.own = 1
    place = TypeOf("item.__class__", item)
    assert place.words()
    item.__class__ = Other
    assert place.words() is None
