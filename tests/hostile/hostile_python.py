"""Functions that read Python state, and what changes that state between two calls.

Each makes a function and a change; where the change is of the whole process, the function has an
attribute ``undo``.
"""

# ruff: noqa: B006, B007, B018, B904, B905, E731, E741, RUF012, UP028
from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import operator
import os
import sys
import threading
import types
import weakref

import torch
import torch.nn.functional as F
from torch import nn

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


class CFG:
    scale = 2.0
    on = True
    table = {"a": 1.0, "b": 2.0}
    names = ["a", "b"]
    t = (1.0, 2.0)
    st = {1, 2}
    dq = collections.deque([1.0, 2.0])


mod = types.ModuleType("modx")
mod.factor = 3.0
mod.inner = types.SimpleNamespace(v=1.0)
sys.modules["modx"] = mod
G = 1.0
LIST = [1.0, 2.0]
var = contextvars.ContextVar("v", default=1.0)


@case
def class_attr():
    class C:
        s = 2.0

    return (lambda x: x * C.s), lambda: setattr(C, "s", 3.0)


@case
def class_attr_via_self():
    class B:
        s = 2.0

    class C(B):
        def __call__(self, x):
            return x * self.s

    return C(), lambda: setattr(B, "s", 3.0)


@case
def class_attr_shadow():
    class B:
        s = 2.0

    class C(B):
        def __call__(self, x):
            return x * self.s

    return C(), lambda: setattr(C, "s", 5.0)


@case
def inst_shadow():
    class C:
        s = 2.0

        def __call__(self, x):
            return x * self.s

    c = C()
    return c, lambda: setattr(c, "s", 7.0)


@case
def module_attr():
    return (lambda x: x * mod.factor), lambda: setattr(mod, "factor", mod.factor + 1)


@case
def module_inner():
    return (lambda x: x * mod.inner.v), lambda: setattr(mod.inner, "v", mod.inner.v + 1)


@case
def imported_inside():
    def f(x):
        import modx

        return x * modx.factor

    return f, lambda: setattr(mod, "factor", mod.factor + 1)


@case
def from_import_inside():
    def f(x):
        from modx import factor

        return x * factor

    return f, lambda: setattr(mod, "factor", mod.factor + 1)


@case
def environ():
    os.environ["GX"] = "2"
    return (lambda x: x * float(os.environ["GX"])), lambda: os.environ.__setitem__("GX", "3")


@case
def environ_get():
    os.environ.pop("GY", None)
    return (lambda x: x * float(os.environ.get("GY", "1"))), lambda: os.environ.__setitem__(
        "GY", "3"
    )


@case
def getenv():
    os.environ.pop("GZ", None)
    return (lambda x: x * float(os.getenv("GZ", "1"))), lambda: os.environ.__setitem__("GZ", "3")


@case
def ctxvar():
    return (lambda x: x * var.get()), lambda: var.set(var.get() + 1)


@case
def helper_global():
    ns = {}
    exec("H=2.0\ndef helper(x): return x*H\nclass K:\n    def m(self,x): return helper(x)\n", ns)
    k = ns["K"]()
    return (lambda x: k.m(x)), lambda: ns.__setitem__("H", 5.0)


@case
def module_in_lambda():
    class M(nn.Module):
        k = 2.0

        def forward(self, x):
            return x * self.k

    m = M()
    return (lambda x: m(x)), lambda: setattr(M, "k", 4.0)


@case
def in_sequential():
    class M(nn.Module):
        k = 2.0

        def forward(self, x):
            return x * self.k

    m = nn.Sequential(M())
    return m, lambda: setattr(M, "k", 4.0)


@case
def prop():
    class M:
        def __init__(s):
            s._k = 2.0

        @property
        def k(s):
            return s._k * CFG.scale

        def __call__(s, x):
            return x * s.k

    m = M()
    return m, lambda: setattr(CFG, "scale", CFG.scale + 1)


@case
def staticm():
    class M:
        @staticmethod
        def k():
            return LIST[1]

        def __call__(s, x):
            return x * s.k()

    return M(), lambda: LIST.__setitem__(1, LIST[1] + 1)


@case
def classm():
    class M:
        q = 1.0

        @classmethod
        def k(cls):
            return cls.q

        def __call__(s, x):
            return x * s.k()

    return M(), lambda: setattr(M, "q", 4.0)


@case
def superchain():
    class A:
        q = 1.0

        def k(s):
            return s.q

    class B(A):
        def k(s):
            return super().k() + 1

    class C(B):
        def k(s):
            return super().k() * 2

        def __call__(s, x):
            return x * s.k()

    return C(), lambda: setattr(A, "q", 4.0)


@case
def super_attr():
    class A:
        q = 1.0

    class C(A):
        q = 9.0

        def __call__(s, x):
            return x * super().q

    return C(), lambda: setattr(A, "q", 4.0)


@case
def replaced_method():
    class A:
        def k(s):
            return 1.0

        def __call__(s, x):
            return x * s.k()

    return A(), lambda: setattr(A, "k", lambda s: 3.0)


@case
def replaced_method_on_instance():
    class A:
        def k(s):
            return 1.0

        def __call__(s, x):
            return x * s.k()

    a = A()
    return a, lambda: setattr(a, "k", lambda: 3.0)


@case
def replaced_function():
    ns = {}
    exec("def h(x): return x*2\ndef f(x): return h(x)", ns)
    return ns["f"], lambda: ns.__setitem__("h", lambda x: x * 3)


@case
def replaced_code():
    def h(x):
        return x * 2

    def f(x):
        return h(x)

    return f, lambda: setattr(h, "__code__", (lambda x: x * 3).__code__)


@case
def dunder_class():
    class A:
        def __call__(s, x):
            return x * s.k()

        def k(s):
            return 1.0

    class B(A):
        def k(s):
            return 2.0

    a = A()
    return (lambda x: a(x)), lambda: setattr(a, "__class__", B)


@case
def defaults():
    def h(x, w=2.0):
        return x * w

    return (lambda x: h(x)), lambda: setattr(h, "__defaults__", (5.0,))


@case
def kwdefaults():
    def h(x, *, w=2.0):
        return x * w

    return (lambda x: h(x)), lambda: h.__kwdefaults__.__setitem__("w", 5.0)


@case
def defaults_list():
    def h(x, w=[2.0]):
        return x * w[0]

    return (lambda x: h(x)), lambda: h.__defaults__[0].__setitem__(0, 5.0)


@case
def cell():
    k = 2.0

    def h(x):
        return x * k

    def setk():
        nonlocal k
        k = 5.0

    return (lambda x: h(x)), setk


@case
def dict_order():
    d = {"a": 1.0, "b": 2.0}

    def f(x):
        for n, v in enumerate(d.values()):
            x = x * v + n
        return x

    return f, lambda: d.__setitem__("a", d.pop("a"))


@case
def dict_new():
    d = {"a": 1.0}
    return (lambda x: x * sum(d.values())), lambda: d.__setitem__("z", 4.0)


@case
def dict_len():
    d = {"a": 1.0}
    return (lambda x: x * len(d)), lambda: d.__setitem__("z", 4.0)


@case
def dict_in():
    d = {"a": 1.0}
    return (lambda x: x * 2 if "z" in d else x * 3), lambda: d.__setitem__("z", 4.0)


@case
def dict_get_default():
    d = {"a": 1.0}
    return (lambda x: x * d.get("z", 3.0)), lambda: d.__setitem__("z", 4.0)


@case
def dict_truth():
    d = {}
    return (lambda x: x * 2 if d else x * 3), lambda: d.__setitem__("z", 4.0)


@case
def set_in():
    s = {1, 2}
    return (lambda x: x * 2 if 3 in s else x * 3), lambda: s.add(3)


@case
def set_iter():
    s = {1, 2}
    return (lambda x: x * sum(s)), lambda: s.add(3)


@case
def set_len():
    s = {1, 2}
    return (lambda x: x * len(s)), lambda: s.add(3)


@case
def deque_():
    s = collections.deque([1.0, 2.0], maxlen=2)
    return (lambda x: x * s[0]), lambda: s.append(3.0)


@case
def deque_rot():
    s = collections.deque([1.0, 2.0])
    return (lambda x: x * s[0] - s[-1]), lambda: s.rotate(1)


@case
def userdict():
    s = collections.UserDict(a=1.0)
    return (lambda x: x * s["a"]), lambda: s.__setitem__("a", 3.0)


@case
def chainmap():
    s = collections.ChainMap({"a": 1.0}, {"b": 2.0})
    return (lambda x: x * s["b"]), lambda: s.maps[0].__setitem__("b", 3.0)


@case
def defaultdict_():
    s = collections.defaultdict(lambda: 1.0)
    s["a"]
    return (lambda x: x * s["a"]), lambda: s.__setitem__("a", 3.0)


@case
def counter_():
    s = collections.Counter("aab")
    return (lambda x: x * s["a"]), lambda: s.update("a")


@case
def ordered():
    s = collections.OrderedDict(a=1.0, b=2.0)

    def f(x):
        for v in s.values():
            x = x * v + 1
        return x

    return f, lambda: s.move_to_end("a")


@case
def list_negative():
    s = [1.0, 2.0]
    return (lambda x: x * s[-1]), lambda: s.append(5.0)


@case
def list_slice():
    s = [1.0, 2.0]
    return (lambda x: x * sum(s[:2])), lambda: s.__setitem__(0, 5.0)


@case
def list_max():
    s = [1.0, 2.0]
    return (lambda x: x * max(s)), lambda: s.__setitem__(0, 5.0)


@case
def list_sorted_key():
    s = [1.0, -2.0]
    return (lambda x: x * sorted(s, key=abs)[0]), lambda: s.__setitem__(0, 5.0)


@case
def list_comp():
    s = [1.0, 2.0]
    return (lambda x: x * sum([v * 2 for v in s])), lambda: s.__setitem__(0, 5.0)


@case
def gen_expr():
    s = [1.0, 2.0]
    return (lambda x: x * sum(v * 2 for v in s)), lambda: s.__setitem__(0, 5.0)


@case
def zip_():
    s = [1.0, 2.0]
    t = [3.0, 4.0]
    return (lambda x: x * sum(a * b for a, b in zip(s, t))), lambda: t.__setitem__(0, 5.0)


@case
def star_args():
    s = [1.0, 2.0]

    def h(x, a, b):
        return x * a - b

    return (lambda x: h(x, *s)), lambda: s.__setitem__(0, 5.0)


@case
def star_kw():
    s = {"a": 1.0, "b": 2.0}

    def h(x, a, b):
        return x * a - b

    return (lambda x: h(x, **s)), lambda: s.__setitem__("a", 5.0)


@case
def nested():
    s = {"a": [{"k": 1.0}]}
    return (lambda x: x * s["a"][0]["k"]), lambda: s["a"][0].__setitem__("k", 5.0)


@case
def nested_dyn():
    s = {"a": [{"k": 1.0}]}
    key = ["a", 0, "k"]

    def f(x):
        o = s
        for k in key:
            o = o[k]
        return x * o

    return f, lambda: s["a"][0].__setitem__("k", 5.0)


@case
def getattr_dyn():
    class C:
        pass

    c = C()
    c.alpha = 1.0
    n = ["alpha"]
    return (lambda x: x * getattr(c, n[0])), lambda: setattr(c, "alpha", 4.0)


@case
def getattr_default():
    class C:
        pass

    c = C()
    return (lambda x: x * getattr(c, "beta", 2.0)), lambda: setattr(c, "beta", 4.0)


@case
def hasattr_():
    class C:
        pass

    c = C()
    return (lambda x: x * 2 if hasattr(c, "beta") else x * 3), lambda: setattr(c, "beta", 4.0)


@case
def del_lora():
    m = nn.Linear(4, 4)
    m.lora = nn.Linear(4, 4)

    def f(x):
        return m.lora(x) if hasattr(m, "lora") else m(x)

    return f, lambda: delattr(m, "lora")


@case
def modules_item():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return m, lambda: m._modules.__setitem__("0", nn.Linear(4, 4))


@case
def vars_():
    class C:
        pass

    c = C()
    c.a = 2.0
    return (lambda x: x * vars(c)["a"]), lambda: setattr(c, "a", 4.0)


@case
def dunder_dict():
    class C:
        pass

    c = C()
    c.a = 2.0
    return (lambda x: x * c.__dict__["a"]), lambda: setattr(c, "a", 4.0)


@case
def slots():
    class C:
        __slots__ = ("a", "b")

    c = C()
    c.a = 2.0
    return (lambda x: x * c.a), lambda: setattr(c, "a", 4.0)


@case
def slots_missing():
    class C:
        __slots__ = ("a", "b")

    c = C()
    return (lambda x: x * getattr(c, "b", 2.0)), lambda: setattr(c, "b", 4.0)


@case
def namespace():
    c = types.SimpleNamespace(a=2.0)
    return (lambda x: x * c.a), lambda: setattr(c, "a", 4.0)


@case
def dataclass_():
    @dataclasses.dataclass
    class C:
        a: float = 2.0

    c = C()
    return (lambda x: x * c.a), lambda: setattr(c, "a", 4.0)


@case
def enum_swap():
    class E(enum.Enum):
        A = 1.0
        B = 2.0

    class C:
        mode = E.A

    return (lambda x: x * C.mode.value), lambda: setattr(C, "mode", E.B)


@case
def namedtuple_global():
    P = collections.namedtuple("P", "a b")

    class C:
        p = P(1.0, 2.0)

    return (lambda x: x * C.p.a), lambda: setattr(C, "p", P(4.0, 2.0))


@case
def partial_():
    kw = {"w": 2.0}

    def h(x, w):
        return x * w

    p = functools.partial(h, **kw)
    return (lambda x: p(x)), lambda: p.keywords.__setitem__("w", 4.0)


@case
def attrgetter():
    c = types.SimpleNamespace(a=types.SimpleNamespace(b=2.0))
    g = operator.attrgetter("a.b")
    return (lambda x: x * g(c)), lambda: setattr(c.a, "b", 4.0)


@case
def itemgetter():
    c = {"a": 2.0}
    g = operator.itemgetter("a")
    return (lambda x: x * g(c)), lambda: c.__setitem__("a", 4.0)


@case
def methodcaller():
    class C:
        v = 2.0

        def m(s):
            return s.v

    c = C()
    g = operator.methodcaller("m")
    return (lambda x: x * g(c)), lambda: setattr(c, "v", 4.0)


@case
def map_():
    s = [1.0, 2.0]
    return (lambda x: x * sum(map(lambda v: v * 2, s))), lambda: s.__setitem__(0, 5.0)


@case
def reduce_():
    s = [1.0, 2.0]
    return (lambda x: x * functools.reduce(lambda a, b: a + b, s)), lambda: s.__setitem__(0, 5.0)


@case
def lru():
    box = [2.0]

    @functools.lru_cache
    def h():
        return box[0]

    def change():
        box[0] = 4.0
        h.cache_clear()

    return (lambda x: x * h()), change


@case
def cached_property_():
    class C:
        k = 2.0

        @functools.cached_property
        def p(s):
            return s.k * 2

    c = C()
    c.p
    return (lambda x: x * c.p), lambda: c.__dict__.__setitem__("p", 9.0)


@case
def weakref_():
    class C:
        v = 2.0

    c = C()
    d = C()
    d.v = 4.0
    box = [c, d]
    r = [weakref.ref(c)]
    return (lambda x: x * r[0]().v if box else x), lambda: r.__setitem__(0, weakref.ref(d))


@case
def weakref_attr():
    class C:
        v = 2.0

    c = C()
    keep = [c]
    r = weakref.ref(c)
    return (lambda x: x * r().v), lambda: setattr(keep[0], "v", 4.0)


@case
def thread_local():
    l = threading.local()
    l.v = 2.0
    return (lambda x: x * l.v), lambda: setattr(l, "v", 4.0)


@case
def thread_local_sub():
    class L(threading.local):
        v = 2.0

    l = L()
    return (lambda x: x * l.v), lambda: setattr(l, "v", 4.0)


@case
def getattr_method():
    class C:
        def __init__(s):
            s.d = {"z": 2.0}

        def __getattr__(s, n):
            try:
                return s.d[n]
            except KeyError:
                raise AttributeError(n)

    c = C()
    return (lambda x: x * c.z), lambda: c.d.__setitem__("z", 4.0)


@case
def getattribute_method():
    class C:
        def __init__(s):
            s.d = {"z": 2.0}

        def __getattribute__(s, n):
            d = object.__getattribute__(s, "d")
            return d[n] if n in d else object.__getattribute__(s, n)

    c = C()
    return (lambda x: x * c.z), lambda: object.__getattribute__(c, "d").__setitem__("z", 4.0)


@case
def descriptor():
    class D:
        def __init__(s):
            s.v = 2.0

        def __get__(s, o, t):
            return s.v

    class C:
        z = D()

    c = C()
    return (lambda x: x * c.z), lambda: setattr(C.__dict__["z"], "v", 4.0)


@case
def metaclass_attr():
    class M(type):
        q = 2.0

    class C(metaclass=M):
        pass

    return (lambda x: x * C.q), lambda: setattr(M, "q", 4.0)


@case
def metaclass_prop():
    class M(type):
        @property
        def q(cls):
            return cls._q

    class C(metaclass=M):
        _q = 2.0

    return (lambda x: x * C.q), lambda: setattr(C, "_q", 4.0)


@case
def dunder_getitem():
    class C:
        def __init__(s):
            s.v = [1.0, 2.0]

        def __getitem__(s, i):
            return s.v[i]

    c = C()
    return (lambda x: x * c[1]), lambda: c.v.__setitem__(1, 4.0)


@case
def dunder_len_bool():
    class C:
        n = 0

        def __len__(s):
            return s.n

    c = C()
    return (lambda x: x * 2 if c else x * 3), lambda: setattr(c, "n", 4)


@case
def dunder_iter():
    class C:
        def __init__(s):
            s.v = [1.0, 2.0]

        def __iter__(s):
            return iter(s.v)

    c = C()
    return (lambda x: x * sum(c)), lambda: c.v.__setitem__(1, 4.0)


@case
def dunder_float():
    class C:
        v = 2.0

        def __float__(s):
            return s.v

    c = C()
    return (lambda x: x * float(c)), lambda: setattr(c, "v", 4.0)


@case
def dunder_mul():
    class C:
        v = 2.0

        def __rmul__(s, o):
            return o * s.v

    c = C()
    return (lambda x: 3.0 * c * x), lambda: setattr(c, "v", 4.0)


@case
def dunder_enter():
    class C:
        v = 2.0

        def __enter__(s):
            return s.v

        def __exit__(s, *a):
            pass

    c = C()

    def f(x):
        with c as v:
            return x * v

    return f, lambda: setattr(c, "v", 4.0)


@case
def dunder_contains():
    class C:
        v = [1]

        def __contains__(s, k):
            return k in s.v

    c = C()
    return (lambda x: x * 2 if 5 in c else x * 3), lambda: C.v.append(5)


@case
def dunder_eq():
    class C:
        v = 2

        def __eq__(s, o):
            return s.v == o

    c = C()
    return (lambda x: x * 2 if c == 4 else x * 3), lambda: setattr(c, "v", 4)


@case
def dunder_str():
    class C:
        v = 2

        def __str__(s):
            return str(s.v)

    c = C()
    return (lambda x: x * float(f"{c}")), lambda: setattr(c, "v", 4)


@case
def fstring_attr():
    c = types.SimpleNamespace(v=2)
    return (lambda x: x * float(f"{c.v}")), lambda: setattr(c, "v", 4)


@case
def tensor_is_none():
    c = types.SimpleNamespace(b=None)
    return (lambda x: x * 2 if c.b is None else x * 3), lambda: setattr(c, "b", torch.ones(4))


@case
def tensor_shape():
    c = types.SimpleNamespace(b=torch.ones(4))
    return (lambda x: x * c.b.shape[0]), lambda: setattr(c, "b", torch.ones(6))


@case
def tensor_dtype():
    c = types.SimpleNamespace(b=torch.ones(4))
    return (lambda x: x * 2 if c.b.dtype == torch.float32 else x * 3), lambda: setattr(
        c, "b", torch.ones(6).half()
    )


@case
def tensor_returned():
    c = types.SimpleNamespace(b=torch.ones(4))
    return (lambda x: (x * 2, c.b)), lambda: setattr(c, "b", torch.zeros(4))


@case
def tensor_requires_grad():
    c = types.SimpleNamespace(b=torch.ones(4))
    return (lambda x: x * 2 if c.b.requires_grad else x * 3), lambda: c.b.requires_grad_(True)


@case
def tensor_attr():
    w = torch.ones(4)
    w.scale = 2.0
    return (lambda x: x * w * w.scale), lambda: setattr(w, "scale", 3.0)


@case
def param_attr():
    m = nn.Linear(4, 4)
    m.weight.scale = 2.0
    return (lambda x: m(x) * m.weight.scale), lambda: setattr(m.weight, "scale", 3.0)


@case
def tensor_grad_none():
    w = torch.ones(4)
    return (lambda x: x * 2 if w.grad is None else x * 3), lambda: setattr(w, "grad", torch.ones(4))


@case
def tensor_data_t():
    w = torch.randn(4, 4)
    return (lambda x: x @ w), lambda: setattr(w, "data", w.data.t())


@case
def tensor_resize():
    w = torch.randn(4, 4)
    return (lambda x: x @ w), lambda: w.resize_(4, 2)


@case
def tensor_unsqueeze():
    w = torch.randn(2, 4)
    return (lambda x: x + w), lambda: w.unsqueeze_(0)


@case
def tensor_in_tuple():
    c = types.SimpleNamespace(p=(torch.ones(4), 1.0))
    return (lambda x: x * c.p[0]), lambda: setattr(c, "p", (torch.zeros(4), 1.0))


@case
def tensor_in_dict():
    c = {"w": torch.ones(4)}
    return (lambda x: x * c["w"]), lambda: c.__setitem__("w", torch.zeros(4))


@case
def tensors_cat():
    c = [torch.ones(2, 4), torch.ones(1, 4)]
    return (lambda x: torch.cat([x, *c])), lambda: c.append(torch.zeros(1, 4))


@case
def tensors_cat_direct():
    c = [torch.ones(2, 4), torch.ones(1, 4)]
    return (lambda x: x.sum() + torch.cat(c)), lambda: c.append(torch.zeros(1, 4))


@case
def training_flag():
    m = nn.Dropout(0.0)

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.d = nn.Linear(4, 4)

        def forward(s, x):
            return s.d(x) * 2 if s.training else s.d(x)

    m = M().eval()
    return (lambda x: m(x)), lambda: m.train()


@case
def bn_momentum_eps():
    m = nn.BatchNorm1d(4).eval()
    return (lambda x: m(x)), lambda: setattr(m, "eps", 0.5)


@case
def global_hook():
    m = nn.Linear(4, 4)
    h = []

    def change():
        h.append(torch.nn.modules.module.register_module_forward_hook(lambda mod, i, o: o * 2))

    f = lambda x: m(x)
    f.undo = lambda: [q.remove() for q in h]
    return f, change


@case
def hook():
    m = nn.Linear(4, 4)
    return (lambda x: m(x)), lambda: m.register_forward_hook(lambda mod, i, o: o * 2)


@case
def hook_state():
    m = nn.Linear(4, 4)
    b = [2.0]
    m.register_forward_hook(lambda mod, i, o: o * b[0])
    return (lambda x: m(x)), lambda: b.__setitem__(0, 4.0)


@case
def monkey_F():
    old = F.relu
    f = lambda x: F.relu(x)
    f.undo = lambda: setattr(F, "relu", old)
    return f, lambda: setattr(F, "relu", lambda x: x * 5)


@case
def monkey_torch():
    old = torch.sigmoid
    f = lambda x: torch.sigmoid(x)
    f.undo = lambda: setattr(torch, "sigmoid", old)
    return f, lambda: setattr(torch, "sigmoid", lambda x: x * 5)


@case
def monkey_forward_class():
    class M(nn.Module):
        def forward(s, x):
            return x * 2

    m = nn.Sequential(M())
    return m, lambda: setattr(M, "forward", lambda s, x: x * 3)


@case
def monkey_forward_inst():
    m = nn.Sequential(nn.ReLU())
    return m, lambda: setattr(m[0], "forward", lambda x: x * 3)


@case
def builtin_shadow():
    ns = {"torch": torch}
    exec("def f(x): return x*max(1,2)", ns)
    return ns["f"], lambda: ns.__setitem__("max", lambda *a: 7)


@case
def moduledict():
    m = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
    c = types.SimpleNamespace(k="a")
    return (lambda x: m[c.k](x)), lambda: setattr(c, "k", "b")


@case
def modulelist_append():
    m = nn.ModuleList([nn.Linear(4, 4)])

    def f(x):
        for l in m:
            x = l(x)
        return x

    return f, lambda: m.append(nn.Linear(4, 4))


@case
def parametrize_():
    from torch.nn.utils import parametrize

    m = nn.Linear(4, 4)

    class P(nn.Module):
        k = 2.0

        def forward(s, w):
            return w * s.k

    parametrize.register_parametrization(m, "weight", P())
    return (lambda x: m(x)), lambda: setattr(P, "k", 5.0)


@case
def buffer_swap():
    m = nn.Module()
    m.register_buffer("b", torch.ones(4))
    return (lambda x: x * m.b), lambda: setattr(m, "b", torch.zeros(4))


@case
def buffer_none():
    m = nn.Module()
    m.register_buffer("b", None)
    return (lambda x: x * 2 if m.b is None else x * 3), lambda: setattr(m, "b", torch.zeros(4))


@case
def numpy_scalar():
    import numpy as np

    c = {"a": np.float32(2.0)}
    return (lambda x: x * float(c["a"])), lambda: c.__setitem__("a", np.float32(3.0))


@case
def numpy_array():
    import numpy as np

    c = np.array([1.0, 2.0])
    return (lambda x: x * float(c[0])), lambda: c.__setitem__(0, 5.0)


@case
def bytearray_():
    c = bytearray(b"ab")
    return (lambda x: x * c[0]), lambda: c.__setitem__(0, 5)


@case
def string_config():
    c = types.SimpleNamespace(act="relu")
    return (lambda x: getattr(torch, c.act)(x)), lambda: setattr(c, "act", "tanh")


@case
def mappingproxy():
    d = {"a": 1.0}
    p = types.MappingProxyType(d)
    return (lambda x: x * p["a"]), lambda: d.__setitem__("a", 3.0)


@case
def dict_subclass_missing():
    class D(dict):
        def __missing__(s, k):
            return 2.0

    d = D()
    return (lambda x: x * d["q"]), lambda: d.__setitem__("q", 5.0)


@case
def list_subclass():
    class D(list):
        def first(s):
            return s[0]

    d = D([2.0])
    return (lambda x: x * d.first()), lambda: d.__setitem__(0, 5.0)


@case
def dict_subclass_attr():
    class D(dict):
        __getattr__ = dict.__getitem__

    d = D(a=2.0)
    return (lambda x: x * d.a), lambda: d.__setitem__("a", 5.0)


@case
def dict_keys_iter():
    d = {"a": 1.0, "b": 2.0}

    def f(x):
        for k in d:
            x = x * d[k] + len(k)
        return x

    return f, lambda: d.__setitem__("a", 3.0)


@case
def unpack():
    d = [1.0, 2.0]

    def f(x):
        a, b = d
        return x * a - b

    return f, lambda: d.__setitem__(0, 3.0)


@case
def unpack_star():
    d = [1.0, 2.0, 3.0]

    def f(x):
        a, *b = d
        return x * a - sum(b)

    return f, lambda: d.append(3.0)


@case
def compare_lists():
    d = [1.0, 2.0]
    return (lambda x: x * 2 if d == [1.0, 2.0] else x * 3), lambda: d.append(1)


@case
def nested_func_attr():
    def h(x):
        return x * h.k

    h.k = 2.0
    return (lambda x: h(x)), lambda: setattr(h, "k", 5.0)


@case
def wrapped():
    b = [2.0]

    def deco(f):
        @functools.wraps(f)
        def w(x):
            return f(x) * b[0]

        return w

    @deco
    def h(x):
        return x + 1

    return (lambda x: h(x)), lambda: b.__setitem__(0, 5.0)


@case
def singledispatch_():
    @functools.singledispatch
    def h(x):
        return x * 2

    return (lambda x: h(x)), lambda: h.register(torch.Tensor)(lambda x: x * 5)


@case
def copy_():
    import copy

    c = types.SimpleNamespace(v=2.0)
    return (lambda x: x * copy.copy(c).v), lambda: setattr(c, "v", 5.0)


@case
def deepcopy_():
    import copy

    c = {"v": [2.0]}
    return (lambda x: x * copy.deepcopy(c)["v"][0]), lambda: c["v"].__setitem__(0, 5.0)


@case
def asdict():
    @dataclasses.dataclass
    class C:
        a: float = 2.0

    c = C()
    return (lambda x: x * dataclasses.asdict(c)["a"]), lambda: setattr(c, "a", 5.0)


@case
def json_():
    import json

    c = {"v": [2.0]}
    return (lambda x: x * json.loads(json.dumps(c))["v"][0]), lambda: c["v"].__setitem__(0, 5.0)


@case
def isinstance_():
    class A:
        pass

    class B:
        pass

    c = types.SimpleNamespace(o=A())
    return (lambda x: x * 2 if isinstance(c.o, A) else x * 3), lambda: setattr(c, "o", B())


@case
def type_name():
    class A:
        pass

    class B:
        pass

    c = types.SimpleNamespace(o=A())
    return (lambda x: x * 2 if type(c.o).__name__ == "A" else x * 3), lambda: setattr(c, "o", B())


@case
def match_():
    c = {"kind": "a"}
    ns = {"c": c}
    exec(
        "def f(x):\n    match c:\n        case {'kind':'a'}: return x*2\n        case _: return x*3\n",
        ns,
    )
    return ns["f"], lambda: c.__setitem__("kind", "b")


@case
def walrus():
    c = types.SimpleNamespace(v=2.0)

    def f(x):
        if (k := c.v) > 1:
            return x * k
        return x

    return f, lambda: setattr(c, "v", 5.0)


@case
def ternary_chain():
    c = types.SimpleNamespace(v=None, d=2.0)
    return (lambda x: x * (c.v or c.d)), lambda: setattr(c, "v", 5.0)


@case
def and_or():
    c = types.SimpleNamespace(a=[], b=[1])
    return (lambda x: x * 2 if (c.a and c.b) else x * 3), lambda: c.a.append(1)


@case
def try_except():
    d = {}

    def f(x):
        try:
            return x * d["k"]
        except KeyError:
            return x * 2

    return f, lambda: d.__setitem__("k", 7.0)


@case
def try_attr():
    c = types.SimpleNamespace()

    def f(x):
        try:
            return x * c.k
        except AttributeError:
            return x * 2

    return f, lambda: setattr(c, "k", 7.0)


@case
def while_loop():
    c = types.SimpleNamespace(n=2)

    def f(x):
        i = 0
        while i < c.n:
            x = x * 2
            i += 1
        return x

    return f, lambda: setattr(c, "n", 4)


@case
def range_attr():
    c = types.SimpleNamespace(n=2)

    def f(x):
        for i in range(c.n):
            x = x * 2
        return x

    return f, lambda: setattr(c, "n", 4)


@case
def linked():
    class N:
        def __init__(s, v, n=None):
            s.v, s.next = v, n

    h = N(1.0, N(2.0))

    def f(x):
        n = h
        while n is not None:
            x = x * n.v + 1
            n = n.next
        return x

    return f, lambda: setattr(h.next, "next", N(3.0))


@case
def recursive():
    t = {"v": 1.0, "c": [{"v": 2.0, "c": []}]}

    def tot(n):
        return n["v"] + sum(tot(c) for c in n["c"])

    return (lambda x: x * tot(t)), lambda: t["c"][0]["c"].append({"v": 5.0, "c": []})


@case
def abc_():
    import abc

    class A(abc.ABC):
        k = 2.0

        @abc.abstractmethod
        def m(s): ...

    class B(A):
        def m(s):
            return s.k

    b = B()
    return (lambda x: x * b.m()), lambda: setattr(A, "k", 5.0)


@case
def generator_fn():
    s = [1.0, 2.0]

    def g():
        for v in s:
            yield v

    return (lambda x: x * sum(g())), lambda: s.__setitem__(0, 5.0)


@case
def class_in_registry():
    R = {"a": lambda x: x * 2}
    return (lambda x: R["a"](x)), lambda: R.__setitem__("a", lambda x: x * 3)


@case
def sys_modules():
    return (lambda x: x * sys.modules["modx"].factor), lambda: setattr(
        mod, "factor", mod.factor + 1
    )


@case
def importlib_():
    import importlib

    return (lambda x: x * importlib.import_module("modx").factor), lambda: setattr(
        mod, "factor", mod.factor + 1
    )


@case
def globals_fn():
    ns = {"Q": 2.0}
    exec("def f(x): return x*globals()['Q']", ns)
    return ns["f"], lambda: ns.__setitem__("Q", 5.0)


@case
def eval_():
    ns = {"Q": 2.0}
    exec("def f(x): return x*eval('Q')", ns)
    return ns["f"], lambda: ns.__setitem__("Q", 5.0)


@case
def bound_method_stored():
    class C:
        v = 2.0

        def m(s):
            return s.v

    c = C()
    b = c.m
    return (lambda x: x * b()), lambda: setattr(c, "v", 5.0)


@case
def class_call():
    class C:
        k = 2.0

        def __init__(s):
            s.v = C.k

    return (lambda x: x * C().v), lambda: setattr(C, "k", 5.0)


@case
def new_in_class():
    class C:
        k = 2.0

        def __new__(cls):
            o = super().__new__(cls)
            o.v = cls.k
            return o

    return (lambda x: x * C().v), lambda: setattr(C, "k", 5.0)


@case
def dataclass_default():
    @dataclasses.dataclass
    class C:
        v: float = 2.0

    return (lambda x: x * C().v), lambda: setattr(C.__init__, "__defaults__", (5.0,))


@case
def itertools_chain():
    import itertools

    a = [1.0]
    b = [2.0]
    return (lambda x: x * sum(itertools.chain(a, b))), lambda: b.append(4.0)


@case
def any_all():
    a = [0, 0]
    return (lambda x: x * 2 if any(a) else x * 3), lambda: a.__setitem__(0, 1)


@case
def string_join():
    a = ["1", "2"]
    return (lambda x: x * float("".join(a))), lambda: a.append("3")


@case
def dict_union():
    a = {"k": 1.0}
    return (lambda x: x * ({"z": 1.0} | a)["k"]), lambda: a.__setitem__("k", 3.0)


@case
def dict_copy():
    a = {"k": 1.0}
    return (lambda x: x * dict(a)["k"]), lambda: a.__setitem__("k", 3.0)


@case
def list_index():
    a = ["u", "v"]
    return (lambda x: x * (1 + a.index("v"))), lambda: a.insert(0, "w")


@case
def list_count_eq():
    a = [1, 1, 2]
    return (lambda x: x * a.count(1)), lambda: a.append(1)


@case
def tuple_of_lists():
    a = ([1.0], [2.0])
    return (lambda x: x * a[0][0]), lambda: a[0].__setitem__(0, 4.0)


@case
def frozenset_swap():
    c = types.SimpleNamespace(s=frozenset({1}))
    return (lambda x: x * 2 if 1 in c.s else x * 3), lambda: setattr(c, "s", frozenset())


@case
def complex_key():
    d = {(1, 2): 1.0}
    return (lambda x: x * d[(1, 2)]), lambda: d.__setitem__((1, 2), 3.0)


@case
def object_key():
    class K:
        pass

    k = K()
    d = {k: 1.0}
    return (lambda x: x * d[k]), lambda: d.__setitem__(k, 3.0)


@case
def enum_key():
    class E(enum.Enum):
        A = 1
        B = 2

    d = {E.A: 1.0}
    return (lambda x: x * d[E.A]), lambda: d.__setitem__(E.A, 3.0)


@case
def type_key():
    d = {int: 1.0}
    return (lambda x: x * d[int]), lambda: d.__setitem__(int, 3.0)


@case
def tensor_list_len():
    c = types.SimpleNamespace(cache=[torch.ones(4)])
    return (lambda x: x * len(c.cache)), lambda: c.cache.append(torch.ones(4))


@case
def torch_dispatch_flags():
    f = lambda x: x * 2 if torch.backends.cudnn.enabled else x * 3
    f.undo = lambda: setattr(torch.backends.cudnn, "enabled", True)
    return f, lambda: setattr(torch.backends.cudnn, "enabled", False)


@case
def default_dtype():
    f = lambda x: x * 2 if torch.get_default_dtype() == torch.float32 else x * 3
    f.undo = lambda: torch.set_default_dtype(torch.float32)
    return f, lambda: torch.set_default_dtype(torch.float64)


@case
def recursion_limit():
    old = sys.getrecursionlimit()
    f = lambda x: x * (sys.getrecursionlimit() - old + 1)
    f.undo = lambda: sys.setrecursionlimit(old)
    return f, lambda: sys.setrecursionlimit(old + 1)


def _super_of_others(use, change):
    """Of ``super(cls, of)`` nothing but its own arguments tells what it reads."""

    def make():
        base = type("Base", (), {"scale": 2.0, "half": lambda self: self.own / 2})
        derived = type("Derived", (base,), {"scale": 7.0, "own": 8.0})
        first, second = derived(), derived()
        names = {"base": base, "derived": derived, "first": first, "second": second}
        return (lambda x: x * use(**names)), (lambda: change(**names))

    return make


def _in_a_method(base, derived, first, second):
    def method(self, other):
        return super(derived, other).half() + self.own

    return method(first, second)


def _with_another_class(base, derived, first, second):
    def method(self, cls):
        return super(cls, self).scale

    return method(first, derived)


def _of_a_class(base, derived, first, second):
    def method(cls):
        return super(derived, cls).scale

    return method(derived)


CASES |= {
    "super_of_another_object": _super_of_others(
        _in_a_method, lambda second, **names: setattr(second, "own", 3.0)
    ),
    "super_of_another_object_and_self": _super_of_others(
        _in_a_method, lambda first, **names: setattr(first, "own", 3.0)
    ),
    "super_of_another_class": _super_of_others(
        _with_another_class, lambda base, **names: setattr(base, "scale", 5.0)
    ),
    "super_of_a_class": _super_of_others(
        _of_a_class, lambda base, **names: setattr(base, "scale", 5.0)
    ),
    "super_of_another_object_of_another_class": _super_of_others(
        _in_a_method,
        lambda base, **names: setattr(base, "half", lambda self: self.own * 3),
    ),
}
