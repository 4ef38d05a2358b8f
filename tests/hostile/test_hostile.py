"""Functions that nobody would call easy: graphed, each gives what eager gives, call by call."""

from __future__ import annotations

import collections
import signal
from typing import Any

import pytest
import torch

import gfxgraph
from tests.helpers.sampled import sampled
from tests.hostile.hostile_containers import CONTAINERS, KEYS
from tests.hostile.hostile_flow import PURE
from tests.hostile.hostile_flow import STATEFUL as FLOW_STATEFUL
from tests.hostile.hostile_memory import ARRANGEMENTS, FUNCTIONS, LAYOUT_CALLS, LAYOUTS, Caches
from tests.hostile.hostile_pools import ROWS, rows
from tests.hostile.hostile_pools import STATEFUL as POOL_STATEFUL
from tests.hostile.hostile_raising import BAD, CATCHES, OPERATORS, arguments, making
from tests.hostile.hostile_randoms import STATEFUL as RANDOM
from tests.hostile.hostile_reads import OUTSIDE, READS
from tests.hostile.hostile_storages import GRADIENTS, STORAGES, replace_gradient
from tests.hostile.hostile_twins import Shown, differs, one, seen, silent_differences, t, two
from tests.hostile.hostile_written import SETTINGS, WRITTEN, settings_kept

pytestmark = pytest.mark.filterwarnings("ignore")


def pure(fn: Any) -> Any:
    return lambda: (fn, None)


def agree(make: Any, arguments: Any, **options: Any) -> None:
    found = silent_differences(make, arguments, **options)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("name", sampled(FUNCTIONS, 12, of_long=23))
def test_memory_that_arguments_share_is_written_as_in_eager(device, name, arrangement):
    agree(pure(FUNCTIONS[name]), ARRANGEMENTS[arrangement])


@pytest.mark.parametrize("calls", LAYOUT_CALLS)
@pytest.mark.parametrize("name", sampled(LAYOUTS, 4, of_long=7))
def test_a_function_that_looks_at_layouts_sees_those_of_its_arguments(device, name, calls):
    agree(pure(LAYOUTS[name]), LAYOUT_CALLS[calls], calls=7)


CACHES = {n: getattr(Caches, n) for n in vars(Caches) if not n.startswith("__")}


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_kept_as_in_eager(device, name):
    agree(CACHES[name], one, calls=7)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", sampled(RANDOM, 3, of_long=5))
def test_random_numbers_are_those_of_eager(device, name, verify):
    agree(
        RANDOM[name],
        lambda n: (t(n, 3),) if name != "multinomial" else (t(n, 4, 3),),
        wrap=lambda fn: gfxgraph.graphed(fn, verify=verify),
        calls=7,
    )


@pytest.mark.parametrize("branching", ["auto", "off"])
@pytest.mark.parametrize("name", sampled(PURE, 3, of_long=5))
def test_the_course_of_a_function_follows_its_data(device, name, branching):
    agree(pure(PURE[name]), one, wrap=lambda fn: gfxgraph.graphed(fn, branching=branching), calls=9)


@pytest.mark.parametrize("name", FLOW_STATEFUL)
def test_a_function_that_raises_or_branches_leaves_the_state_of_eager(device, name):
    agree(FLOW_STATEFUL[name], one, calls=9)


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("how", CATCHES)
@pytest.mark.parametrize("operator", sampled(OPERATORS, 6, of_long=11))
def test_an_error_of_an_operator_is_caught_as_in_eager(device, operator, how, writes):
    graphs = []

    def wrap(fn: Any) -> Any:
        graphs.append(gfxgraph.graphed(fn))
        return graphs[-1]

    agree(making(operator, how, writes), arguments, calls=8, wrap=wrap)
    assert graphs[0].stats().replays == 7 - len(BAD)


@torch.no_grad()
def test_the_error_of_a_signal_handler_reaches_the_caller_of_a_replay(device, monkeypatch):
    def handle(number: int, frame: Any) -> None:
        raise TimeoutError

    def run(root: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        list(range(10))

    graph, x = gfxgraph.graphed(lambda x: x + 1 if x.sum() > 0 else x), torch.ones(3, device=device)
    graph(x)
    monkeypatch.setattr("gfxgraph.call.replay.run", run)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(TimeoutError):
            graph(x)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("warmup", [1, 3])
@pytest.mark.parametrize("name", sampled(WRITTEN, 3, of_long=5))
def test_what_a_call_writes_is_written_once_wherever_it_is(device, name, warmup):
    def make() -> Any:
        fn, show = WRITTEN[name]()
        return fn, Shown(show)

    agree(
        make,
        lambda n: (t(n, 3),),
        wrap=lambda fn: gfxgraph.graphed(fn, warmup=warmup),
        calls=12,
    )


@pytest.mark.parametrize("warmup", [1, 3])
@pytest.mark.parametrize("name", sampled(STORAGES, 2))
def test_memory_that_no_operation_shows_is_as_in_eager(device, name, warmup):
    agree(STORAGES[name], one, wrap=lambda fn: gfxgraph.graphed(fn, warmup=warmup))


@pytest.mark.parametrize("name", [n for n in STORAGES if "_gets_" in n or "_set_to_" in n])
def test_what_each_call_puts_into_a_tensor_is_there_again_after_each(device, name):
    def undo(own: Any, n: int) -> None:
        if n % 2:
            own.data = torch.zeros(4, device=own.device)[: max(1, own.shape[0])].clone()

    agree(STORAGES[name], one, between=undo, calls=8)


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_is_the_one_that_the_caller_has_put_there(device, name):
    agree(GRADIENTS[name], one, between=replace_gradient, calls=8)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", sampled(READS, 2))
def test_data_that_the_host_reads_unseen_is_that_of_the_call(device, name, mode):
    fn, arguments = READS[name]
    agree(pure(fn), arguments, calls=8, mode=mode)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("where", sorted({"cpu", gfxgraph.device_type()}))
@pytest.mark.parametrize("name", sampled(OUTSIDE, 2))
def test_data_that_the_host_reads_from_outside_is_that_of_now(device, name, where, mode):
    def make() -> Any:
        with mode():
            own = torch.ones(1, device=where)
        return (lambda x: OUTSIDE[name](x, own)), own

    def fill(own: torch.Tensor, n: int) -> None:
        if n % 2:
            with torch.inference_mode(own.is_inference()):
                own.fill_(n)

    agree(make, lambda n: (t(n, 6),), between=fill, calls=8, mode=mode)


KEPT: dict[str, Any] = {
    "a set": (set, lambda kept, n: (kept.clear(), kept.add(n))),
    "a deque": (lambda: collections.deque(maxlen=1), lambda kept, n: kept.append(n)),
    "an order": (
        lambda: collections.OrderedDict({1: 0, 2: 0, 3: 0, 4: 0}),
        lambda kept, n: kept.move_to_end(n),
    ),
    "a dict": (dict, lambda kept, n: kept.update(size=n)),
    "a flag": (lambda: torch.zeros(2), lambda kept, n: kept.requires_grad_(n == 2)),
    "an attribute": (lambda: torch.zeros(2), lambda kept, n: setattr(kept, "size", n)),
}


@pytest.mark.parametrize("name", KEPT)
def test_calls_of_two_sizes_leave_the_state_of_the_last(device, name):
    new, keep = KEPT[name]

    def make() -> Any:
        kept = new()

        def fn(x):
            keep(kept, x.shape[0])
            return x + 1

        return fn, Shown(lambda: (kept, getattr(kept, "requires_grad", 0), vars_of(kept)))

    def vars_of(kept: Any) -> Any:
        return dict(getattr(kept, "__dict__", {}))

    agree(make, lambda n: (t(n, (2, 2, 3, 2, 3, 3, 2, 2)[n]),), calls=8)


@pytest.mark.parametrize("wrap", ["graphed", "pool"])
def test_the_size_of_a_call_is_kept_as_in_eager(device, wrap):
    def make() -> Any:
        kept = {"rows": 0}

        def fn(x):
            kept["rows"] = x.shape[0]
            return x * 2

        return fn, kept

    def arguments(n: int) -> Any:
        return (t(n, (4, 3, 4, 2, 2, 1, 4, 3)[n], 3),)

    pool: Any = lambda fn: gfxgraph.ShapeBucketPool(fn, buckets=[4])  # noqa: E731
    agree(make, arguments, wrap=gfxgraph.graphed if wrap == "graphed" else pool, calls=8)


@pytest.mark.parametrize("warmup", [1, 3])
@pytest.mark.parametrize("name", SETTINGS)
@torch.no_grad()
def test_a_setting_of_the_process_changes_as_often_as_in_eager(device, name, warmup):
    views = []
    for wrap in (lambda fn: fn, lambda fn: gfxgraph.graphed(fn, warmup=warmup)):
        with settings_kept():
            fn, show = SETTINGS[name]()
            fn = wrap(fn)
            views.append([(seen(fn(t(n, 3))), seen(show())) for n in range(6)])
    assert not differs(*views), views


@pytest.mark.parametrize("name", sampled(KEYS, 2))
def test_arguments_that_nearly_are_equal_are_told_apart(device, name):
    fn, arguments = KEYS[name]
    agree(pure(fn), arguments, calls=8)


@pytest.mark.parametrize("name", sampled(CONTAINERS, 2))
def test_arguments_and_results_are_containers_of_any_kind(device, name):
    fn, arguments = CONTAINERS[name]
    agree(pure(fn), arguments)


POOLS: dict[str, Any] = {
    "a pool": lambda fn: gfxgraph.ShapeBucketPool(fn, buckets=[2, 4, 8]),
    "buckets": lambda fn: gfxgraph.graphed(fn, buckets=[4, 8]),
    "a pool that splits": lambda fn: gfxgraph.ShapeBucketPool(fn, buckets=[2, 4], larger="split"),
    "a pool padded with zeros": lambda fn: gfxgraph.ShapeBucketPool(fn, buckets=[4, 8], pad="zero"),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", sampled(ROWS, 12, of_long=23))
def test_padding_never_reaches_a_row_that_was_asked_for(device, name, pool):
    agree(pure(ROWS[name]), rows, wrap=POOLS[pool], calls=10)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", POOL_STATEFUL)
def test_padding_never_reaches_the_state(device, name, pool):
    agree(POOL_STATEFUL[name], rows, wrap=POOLS[pool], calls=10)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", sampled(FUNCTIONS, 3, of_long=5))
def test_other_grad_modes_give_what_eager_gives(device, name, mode):
    agree(pure(FUNCTIONS[name]), two, mode=mode)
