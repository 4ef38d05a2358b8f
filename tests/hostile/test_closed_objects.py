"""What code of torch and of Python writes to its own objects is there once for each call."""

from __future__ import annotations

import shlex

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

import gfxgraph
from gfxgraph.device import current_device
from gfxgraph.errors import CaptureError
from gfxgraph.graph.rollback import run_and_roll_back

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, cycle_momentum=False),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


def scheduler(make):
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    found = make(optimizer)
    optimizer.step()

    def function(x):
        found.step()
        return x * 2

    def state():
        held = vars(found)
        counts = {k: v for k, v in held.items() if isinstance(v, (int, float, list))}
        for name in ("lr_lambdas", "_schedulers"):
            counts.pop(name, None)
        inner = [vars(one)["last_epoch"] for one in held.get("_schedulers", [])]
        return repr((counts, inner)), optimizer.param_groups[0]["lr"]

    return function, state


def steps_of_a_profiler():
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def function(x):
        profiler.step()
        return x * profiler.step_num

    return function, lambda: profiler.step_num


def steps_that_nobody_reads():
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def function(x):
        profiler.step()
        return x * 2

    return function, lambda: profiler.step_num


def numbers_of_hooks():
    linear, first = torch.nn.Linear(2, 2), RemovableHandle.next_id

    def function(x):
        linear.register_forward_hook(lambda *args: None).remove()
        return x * (RemovableHandle.next_id - first)

    return function, lambda: RemovableHandle.next_id - first


def dict_of_weak_keys():
    key, held = torch.ones(1), WeakIdKeyDictionary()
    held[key] = 0

    def function(x):
        held[key] += 1
        return x * held[key]

    return function, lambda: held[key]


def dict_that_grows():
    keys, held = [torch.ones(1) for _ in range(9)], WeakIdKeyDictionary()

    def function(x):
        held[keys[len(held)]] = 0
        return x * len(held)

    return function, lambda: len(held)


def attributes_that_are_read_after_a_store():
    lexer = shlex.shlex("a")
    lexer.steps = 0

    def function(x):
        lexer.steps += 1
        count = len(str(vars(lexer)["steps"])) + sum(name == "steps" for name in vars(lexer))
        return x * lexer.steps * count

    return function, lambda: (lexer.steps, list(vars(lexer)))


def attributes_that_are_read_after_one_went():
    lexer = shlex.shlex("a")
    lexer.steps, lexer.last = 0, 1

    def function(x):
        del lexer.steps
        lexer.steps = sum(name == "last" for name in vars(lexer))
        return x * 2

    return function, lambda: list(vars(lexer))


def gives(make, wrap):
    function, state = make()
    called, found = wrap(function), []
    with torch.no_grad():
        for n in range(5):
            found.append((called(torch.arange(2.0) + n).tolist(), state()))
    return found


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_steps_once_in_each_call(name):
    def make():
        return scheduler(SCHEDULERS[name])

    assert gives(make, gfxgraph.graphed) == gives(make, lambda function: function)


@pytest.mark.parametrize(
    "make",
    [
        steps_of_a_profiler,
        steps_that_nobody_reads,
        numbers_of_hooks,
        dict_of_weak_keys,
        dict_that_grows,
        attributes_that_are_read_after_a_store,
        attributes_that_are_read_after_one_went,
    ],
    ids=lambda make: make.__name__,
)
def test_what_a_call_changes_in_an_object_of_closed_code_is_changed_once(make):
    assert gives(make, gfxgraph.graphed) == gives(make, lambda function: function)


def test_a_run_that_nobody_asked_for_leaves_an_object_of_closed_code_as_it_was():
    function, state = steps_that_nobody_reads()
    x = torch.ones(2)
    with pytest.raises(CaptureError, match="step_num"):
        run_and_roll_back(function, (x,), {}, [x], current_device())
    assert state() == 0
