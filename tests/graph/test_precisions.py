"""Settings that objects of ``torch.backends`` tell are asked again where they were asked for."""

import inspect
import operator
import sys

import pytest
import torch

import gfxgraph

if not hasattr(torch._C, "_get_fp32_precision_getter"):
    pytest.skip("this torch has no precision by backend", allow_module_level=True)

BACKENDS = torch.backends
OF_MKLDNN = torch.backends.mkldnn.matmul
SET_FLAGS = torch.backends.set_flags
BOUND = torch.backends.mkldnn.matmul.__getattr__
MADE = torch.backends._get_fp32_precision_getter("generic", "all")
SETTINGS = [
    *(("generic", "all"), ("cuda", "all"), ("mkldnn", "all")),
    *(("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul")),
]
WAYS = {
    "by its name": lambda: torch.backends.fp32_precision,
    "of a module that is held": lambda: BACKENDS.fp32_precision,
    "getattr": lambda: getattr(torch.backends, "fp32_" + "precision"),
    "attrgetter": lambda: operator.attrgetter("fp32_precision")(torch.backends),
    "attrgetter of torch": lambda: operator.attrgetter("backends.fp32_precision")(torch),
    "attrgetter in map": lambda: next(map(operator.attrgetter("fp32_precision"), [BACKENDS])),
    "a property": lambda: type(torch.backends).fp32_precision,
    "a property, bound": lambda: vars(type(BACKENDS))["fp32_precision"].__get__(BACKENDS, None),
    "its getter": lambda: vars(type(BACKENDS))["fp32_precision"].getter(),
    "without binding": lambda: inspect.getattr_static(type(BACKENDS), "fp32_precision").getter(),
    "past the class": lambda: object.__getattribute__(torch.backends, "fp32_precision"),
    "of the module in sys": lambda: sys.modules["torch.backends"].fp32_precision,
    "an argument": lambda: (lambda *given: given[0].fp32_precision)(BACKENDS),
    "the function in C": lambda: torch._C._get_fp32_precision_getter("generic", "all"),
    "cuda": lambda: torch.backends.cuda.matmul.fp32_precision,
    "cudnn": lambda: torch.backends.cudnn.fp32_precision,
    "cudnn for an operation": lambda: torch.backends.cudnn.conv.fp32_precision,
    "mkldnn": lambda: torch.backends.mkldnn.fp32_precision,
    "mkldnn for an operation": lambda: torch.backends.mkldnn.matmul.fp32_precision,
    "__getattr__": lambda: torch.backends.mkldnn.matmul.__getattr__("fp32_precision"),
    "__getattr__ of cudnn": lambda: torch.backends.cudnn.conv.__getattr__("fp32_precision"),
    "__getattr__ of cuda": lambda: torch.backends.cuda.matmul.__getattr__("fp32_precision"),
    "methodcaller": lambda: operator.methodcaller("__getattr__", "fp32_precision")(OF_MKLDNN),
    "set_flags": lambda: torch.backends.set_flags(None)[0],
    "set_flags that is held": lambda: SET_FLAGS(None)[0],
    "set_flags of mkldnn": lambda: torch.backends.mkldnn.set_flags(None, None, None, None)[-1],
    "the function in Python": lambda: torch.backends._get_fp32_precision_getter("generic", "all")(),
    "the same, of cudnn": lambda: torch.backends.cudnn.m._get_fp32_precision_getter(
        "cuda", "all"
    )(),
    "a method that is held": lambda: BOUND("fp32_precision"),
    "a function that torch has made": lambda: MADE(),
    "cudnn for rnn": lambda: torch.backends.cudnn.rnn.fp32_precision,
}


@pytest.fixture
def nothing_is_set():
    """Each setting tells of itself; afterwards it is what it was."""
    get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    before = [get(*setting) for setting in SETTINGS]
    for setting in SETTINGS:
        put(*setting, "none")
    yield
    for setting, value in zip(SETTINGS, before, strict=True):
        put(*setting, value)


@pytest.mark.usefixtures("nothing_is_set")
@pytest.mark.parametrize("way", WAYS)
def test_a_call_after_a_change_gives_what_eager_gives(way, device):
    ask = WAYS[way]
    fn = lambda x: x * 2 if ask() == "ieee" else x * 3  # noqa: E731
    graph, x = gfxgraph.graphed(fn), torch.ones(2, device=device)
    for _ in range(3):
        assert graph(x).tolist() == [3, 3]
    for setting in SETTINGS:
        for value in ("ieee", "none"):
            torch._C._set_fp32_precision_setter(*setting, value)
            assert graph(x).tolist() == fn(x).tolist(), setting
    assert graph(x).tolist() == [3, 3]


def test_what_asks_for_another_setting_does_not_ask_for_these_in_each_call(device):
    norm = torch.nn.LayerNorm(4).to(device)  # it asks whether cuDNN is enabled
    graph = gfxgraph.graphed(norm)
    with torch.no_grad():
        for _ in range(3):
            graph(torch.ones(2, 4, device=device))
    (entry,) = graph._dispatcher.entries.all()
    assert "fp32_precision" not in " ".join(p.path for p in entry.captured.guard.places().values())
