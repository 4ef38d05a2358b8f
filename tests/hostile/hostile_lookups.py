"""Functions in which a name leads to something else in the middle of a run, or between calls.

Each case has a source, which is run for the graph and for its eager twin, and what changes before
which call. ``PRELUDE`` comes first, and ``THREE`` where a source begins with ``+``.
"""

PRELUDE = """\
import torch, sys, os, time, types, operator, functools, contextlib, collections, itertools, inspect, threading, math, io, copy, gc, dataclasses, random, queue, logging, json, typing
from torch import nn
from types import SimpleNamespace as NS
class O:
    def __init__(self, **k): self.__dict__.update(k)
"""
THREE = """\
A = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)
ITEMS = [A, B, C]; D = {'a': A, 'b': B}
"""

CASES = {
    "ga1": (
        "\nclass C:\n    def __getattribute__(self, name):\n        v = object.__getattribute__(self, name)\n        if name == 'cfg': return v.alt\n        return v\nc = C(); c.cfg = O(alt=O(scale=2., bias=1.), scale=5., bias=7.)\ndef f(x):\n    y = x * c.cfg.scale\n    return y + c.cfg.bias\n",
        {
            3: "object.__getattribute__(c,'cfg').alt.bias = 3.",
            5: "object.__getattribute__(c,'cfg').alt.scale = 3.",
        },
    ),
    "ga2": (
        "\nclass C:\n    def __getattribute__(self, name):\n        v = super().__getattribute__(name)\n        if name == 'cfg': return v.alt\n        return v\nc = C(); c.cfg = O(alt=O(scale=2., bias=1.), scale=5., bias=7.)\ndef f(x):\n    y = x * c.cfg.scale\n    y = y * c.cfg.scale\n    return y + c.cfg.bias\n",
        {
            3: "object.__getattribute__(c,'cfg').alt.bias = 3.",
            5: "object.__getattribute__(c,'cfg').alt.scale = 3.",
        },
    ),
    "ga3": (
        "\nA = O(scale=2.); B = O(scale=3.)\nclass C:\n    def __getattribute__(self, name):\n        if name == 'cfg': return B\n        return object.__getattribute__(self, name)\nc = C(); c.cfg = A\ndef f(x):\n    y = x * object.__getattribute__(c, 'cfg').scale\n    return y + c.cfg.scale\n",
        {3: "B.scale = 5.", 5: "A.scale = 5."},
    ),
    "ga4": (
        "\nclass W(nn.Module):\n    def __init__(self):\n        super().__init__(); self.layer = NSM(); self.w = 1.\n    def __getattr__(self, name):\n        v = super().__getattr__(name)\n        if name == 'layer': return v.inner\n        return v\n    def forward(self, x):\n        y = x * self.layer.scale\n        return y + self.layer.bias\nclass NSM(nn.Module):\n    def __init__(self):\n        super().__init__(); self.inner = O(scale=2., bias=1.); self.scale = 9.; self.bias = 8.\nm = W()\ndef f(x): return m(x)\n",
        {3: "m._modules['layer'].inner.bias = 4.", 5: "m._modules['layer'].inner.scale = 4."},
    ),
    "ga5": (
        "\nclass W(nn.Module):\n    def __init__(self):\n        super().__init__(); self.a = nn.Linear(4,4); self.b = nn.Linear(4,4)\n        self.a.scale = 2.; self.b.scale = 3.\n        self.a.weight.fill_(.5); self.b.weight.fill_(.25); self.a.bias.zero_(); self.b.bias.zero_()\n    def __getattr__(self, name):\n        if name == 'a': name = 'b'\n        return super().__getattr__(name)\n    def forward(self, x):\n        return self.a(x) * self.a.scale\nm = W()\ndef f(x): return m(x)\n",
        {3: "m._modules['b'].scale = 4.", 5: "m._modules['b'].scale = 5."},
    ),
    "ga6": (
        "\nclass D(dict):\n    def __getattribute__(self, name):\n        if name == 'cfg': return dict.__getitem__(self, 'k')\n        return dict.__getattribute__(self, name)\nd = D(k=O(scale=2.)); \ndict.__getattribute__(d, '__dict__')['cfg'] = O(scale=7.)\ndef f(x):\n    z = object.__getattribute__(d, 'cfg').scale\n    return x * d.cfg.scale + d.cfg.scale + z\n",
        {3: "d['k'].scale = 5.", 5: "d.__dict__['cfg'].scale = 1."},
    ),
    "ga7": (
        "\nclass C:\n    def __getattribute__(self, name):\n        v = object.__getattribute__(self, name)\n        return v * 2 if name == 'scale' else v\nc = C(); c.scale = 2.\ndef f(x): return x * c.scale + c.scale - c.scale\n",
        {3: "c.scale = 3.", 5: "C.__getattribute__ = lambda s, n: object.__getattribute__(s, n)"},
    ),
    "ga8": (
        "\nclass C:\n    def __getattr__(self, name):\n        if name == 'cfg': return object.__getattribute__(self, 'alt')\n        raise AttributeError(name)\nc = C(); c.alt = O(s=2.)\ndef f(x):\n    y = x * c.cfg.s\n    c.cfg = O(s=4.)\n    y = y + c.cfg.s\n    del c.cfg\n    return y + c.cfg.s\n",
        {3: "c.alt.s = 5.", 5: "c.alt = O(s=1.5)"},
    ),
    "cl1": (
        "\nclass M: hook = None\nm = M(); ob = O(scale=2.)\ndef f(x):\n    if m.hook is None: x = x + 1\n    M.hook = ob\n    y = x * m.hook.scale\n    M.hook = None\n    return y\n",
        {3: "ob.scale = 3.", 5: "ob.scale = 4."},
    ),
    "cl2": (
        "\nA = O(scale=2.); B = O(scale=3.)\nclass M: cfg = A\nm = M()\ndef f(x):\n    y = x * m.cfg.scale\n    M.cfg = B\n    y = y + m.cfg.scale\n    M.cfg = A\n    return y\n",
        {3: "B.scale = 4.", 5: "A.scale = 4."},
    ),
    "cl3": (
        "\nA = O(scale=2.); B = O(scale=3.)\nclass M: pass\nm = M(); m.cfg = A\ndef f(x):\n    y = x * m.cfg.scale\n    M.cfg = property(lambda s: B)\n    y = y + m.cfg.scale\n    del M.cfg\n    return y\n",
        {3: "B.scale = 4.", 5: "A.scale = 4."},
    ),
    "cl4": (
        "\nA = O(scale=2.); B = O(scale=3.)\nclass M:\n    def go(self, x): return x * A.scale\ndef other(self, x): return x * B.scale\norig = M.go\nm = M()\ndef f(x):\n    y = m.go(x)\n    M.go = other\n    y = y + m.go(x)\n    M.go = orig\n    return y\n",
        {3: "B.scale = 4.", 5: "A.scale = 4."},
    ),
    "cl5": (
        "\nk = [3.]\ndef mk():\n    t = O(scale=3.)\n    def other(self, x, q=O(s=1.)): return x * t.scale + q.s\n    return other, t\nother, t = mk()\nclass M:\n    def go(self, x): return x * 2\norig = M.go\nm = M()\ndef f(x):\n    y = m.go(x)\n    setattr(M, 'go', other)\n    y = y + m.go(x)\n    setattr(M, 'go', orig)\n    return y\n",
        {3: "t.scale = 4.", 5: "other.__defaults__[0].s = 4."},
    ),
    "cl6": (
        "\nclass A:\n    cfg = O(s=2.)\nclass B:\n    cfg = O(s=3.)\nm = A()\ndef f(x):\n    y = x * m.cfg.s\n    m.__class__ = B\n    y = y + m.cfg.s\n    m.__class__ = A\n    return y + m.cfg.s\n",
        {3: "B.cfg.s = 5.", 5: "B.cfg = O(s=7.)"},
    ),
    "cl7": (
        "\nclass A:\n    def go(self): return P.s\nclass B:\n    def go(self): return Q.s\nP = O(s=2.); Q = O(s=3.)\nm = A()\ndef f(x):\n    y = x * m.go()\n    m.__class__ = B\n    y = y + m.go()\n    m.__class__ = A\n    return y + m.go()\n",
        {3: "Q.s = 5.", 5: "B.go = lambda self: P.s * 2"},
    ),
    "cl8": (
        "\nclass Base: cfg = O(s=2.)\nclass A(Base): pass\nm = A()\ndef f(x):\n    y = x * m.cfg.s\n    A.cfg = alt\n    y = y + m.cfg.s\n    del A.cfg\n    return y + m.cfg.s\nalt = O(s=6.)\n",
        {3: "alt.s = 5.", 5: "Base.cfg.s = 3."},
    ),
    "cl9": (
        "\nclass A:\n    hook = None\nalt = O(s=6.); L = []\ndef f(x):\n    a = A()\n    if a.hook is None: x = x + 1\n    A.hook = alt\n    b = A()\n    y = x * b.hook.s\n    A.hook = None\n    return y\n",
        {3: "alt.s = 5.", 5: "alt.s = 7."},
    ),
    "cl10": (
        "\nP = O(s=2.); Q = O(s=3.)\nclass A:\n    cfg = P\ndef f(x):\n    y = x * A().cfg.s\n    A.cfg = Q\n    y = y * A().cfg.s\n    A.cfg = P\n    return y\n",
        {3: "Q.s = 5.", 5: "P.s = 7."},
    ),
    "cl11": (
        "\nP = O(s=2.); Q = O(s=3.)\nclass A:\n    def __init__(self): self.cfg = P\ndef f(x):\n    y = x * A().cfg.s\n    A.cfg = property(lambda s: Q, lambda s, v: None)\n    y = y * A().cfg.s\n    del A.cfg\n    return y\n",
        {3: "Q.s = 5.", 5: "P.s = 7."},
    ),
    "cl12": (
        "\nP = O(s=2.); Q = O(s=3.)\nclass A:\n    cfg = P\ndef f(x):\n    a = A()\n    y = x * a.cfg.s\n    del A.cfg\n    A.__getattr__ = lambda self, n: Q\n    y = y * a.cfg.s * A().cfg.s\n    del A.__getattr__\n    A.cfg = P\n    return y\n",
        {3: "Q.s = 5.", 5: "P.s = 7."},
    ),
    "cl13": (
        "\nP = O(s=2.); Q = O(s=3.)\nclass Meta(type):\n    def __getattr__(cls, n): return Q if n == 'zz' else None\nclass A(metaclass=Meta):\n    zz = P\ndef f(x):\n    y = x * A.zz.s\n    del A.zz\n    y = y + A.zz.s\n    A.zz = P\n    return y\n",
        {3: "Q.s = 5.", 5: "P.s = 7."},
    ),
    "cl14": (
        "\nP = O(s=2.); Q = O(s=3.)\nclass Desc:\n    def __get__(self, o, t=None): return Q\nclass A: pass\na = A(); a.cfg = P\nA.cfg = Desc()\ndef f(x):\n    y = x * a.cfg.s\n    Desc.__set__ = lambda self, o, v: None\n    y = y + a.cfg.s\n    del Desc.__set__\n    return y\n",
        {3: "Q.s = 5.", 5: "P.s = 7."},
    ),
    "g_glob1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nG = A\ndef f(x):\n    global G\n    y = x * G.s\n    G = B\n    y = y + G.s\n    G = A\n    return y + G.t\n",
        {2: "B.s = 9.", 4: "A.t = 9."},
    ),
    "g_glob2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nG = A\ndef f(x):\n    y = x * G.s\n    globals()['G'] = B\n    y = y + G.s\n    globals()['G'] = A\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nG = A\ndef f(x):\n    y = x * G.s\n    globals().update(G=B)\n    y = y + G.s\n    globals().update(G=A)\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nG = A\ndef f(x):\n    y = x * G.s\n    exec('G = B', globals())\n    y = y + G.s\n    exec('G = A', globals())\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n\ndef f(x):\n    global len\n    y = x * len(ITEMS)\n    len = lambda v: v[1].s\n    y = y + len(ITEMS)\n    del len\n    return y + len(ITEMS)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n\ndef f(x):\n    global max\n    y = x * max(1, 2)\n    max = B\n    y = y + max.s\n    del max\n    return y + max(1, 3)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nimport builtins\nbuiltins.ZQ = A\ndef f(x):\n    import builtins\n    y = x * ZQ.s\n    builtins.ZQ = B\n    y = y + ZQ.s\n    builtins.ZQ = A\n    return y\n",
        {2: "B.s = 5.", 4: "A.s = 6."},
    ),
    "g_glob8": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nG = A\ndef f(x):\n    me = sys.modules[__name__]\n    y = x * me.G.s\n    me.G = B\n    y = y + me.G.s + G.s\n    me.G = A\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob9": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nG = A\ndef f(x):\n    me = sys.modules[__name__]\n    y = x * G.s\n    setattr(me, 'G', B)\n    y = y + G.s\n    setattr(me, 'G', A)\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob10": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nG = A\ndef g(): return G.s\ndef f(x):\n    y = x * g()\n    g.__globals__['G'] = B\n    y = y + g()\n    g.__globals__['G'] = A\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob11": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nG = A\ndef f(x):\n    global G\n    y = x * G.s\n    del G\n    try: y = y + G.s\n    except NameError: y = y + B.s\n    G = A\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob12": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.G = A\ndef f(x):\n    y = x * M.G.s\n    M.G = B\n    y = y + M.G.s\n    M.G = A\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob13": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.G = A\ndef f(x):\n    y = x * M.G.s\n    M.__dict__['G'] = B\n    y = y + M.G.s\n    M.__dict__.update(G=A)\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob14": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.G = A\nclass MC(types.ModuleType):\n    G = property(lambda s: B)\ndef f(x):\n    y = x * M.G.s\n    M.__class__ = MC\n    y = y + M.G.s\n    M.__class__ = types.ModuleType\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob15": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.G = A; M.__getattr__ = lambda n: B\ndef f(x):\n    y = x * M.G.s\n    del M.G\n    y = y + M.G.s\n    M.G = A\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob16": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.G = A; M.__getattr__ = lambda n: B\ndef f(x):\n    y = x * M.G.s\n    M.__getattr__ = lambda n: C\n    y = y + M.G.s + M.H.s\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob17": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\ndef mk(c):\n    def q(z=C): return c.s + z.s\n    return q\nh1 = mk(A); h2 = mk(B); h = h1\ndef f(x):\n    global h\n    y = x * h()\n    h = h2\n    y = y + h()\n    h = h1\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob18": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\ndef mk(c):\n    def q(z=C): return c.s + z.s\n    return q\nh1 = mk(A); h2 = mk(B)\nM = types.ModuleType('usr_q'); M.h = h1\ndef f(x):\n    y = x * M.h()\n    M.h = h2\n    y = y + M.h()\n    M.h = h1\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob19": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nT0 = 0\ndef f(x):\n    global T0\n    T0 = T0 + 1\n    if T0 % 2: return x * A.s\n    return x * B.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_glob20": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nN = 0\ndef f(x):\n    global N\n    N += 1\n    y = x * N\n    N += 1\n    return y + N\n",
        {2: "N = 10", 4: "N = 3"},
    ),
    "g_glob21": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nN = 1\ndef f(x):\n    global N\n    y = x * N\n    N += 1\n    N -= 1\n    return y + N\n",
        {2: "N = 10", 4: "N = 3"},
    ),
    "g_cnt1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nA.n = 0\ndef f(x):\n    A.n += 1\n    y = x * A.s\n    A.n += 1\n    return y + A.s\n",
        {2: "A.n = 10", 4: "A.s = 9."},
    ),
    "g_cnt2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nA.n = 0\ndef f(x):\n    A.n += 1\n    A.n += 1\n    y = x * A.s\n    if A.n > 9: y = y * 2\n    return y + A.s\n",
        {2: "A.n = 3"},
    ),
    "g_cnt3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nA.n = 1\ndef f(x):\n    y = x * A.n\n    A.n += 1\n    y = y + A.n\n    A.n -= 1\n    return y\n",
        {2: "A.n = 3"},
    ),
    "g_cnt4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n\ndef f(x):\n    for c in ITEMS:\n        c.n = getattr(c, 'n', 0) + 1\n    return x * A.n\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cnt5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass H: n = 0\nh = H()\ndef f(x):\n    H.n += 1\n    h.n += 1\n    return x * h.n + H.n\n",
        {2: "H.n = 5", 4: "h.n = 7"},
    ),
    "g_cnt6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Module(); m.n = 0; m.lin = nn.Linear(4, 4); m.lin.k = 2.\ndef f(x):\n    m.n += 1\n    y = m.lin(x)\n    m.n += 1\n    return y * m.lin.k + m.lin.k\n",
        {2: "m.n = 5", 4: "m.lin.k = 7"},
    ),
    "g_cnt7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Module(); m.n = 0; m.lin = nn.Linear(4, 4); m.lin.k = 2.\ndef f(x):\n    m.n += 1\n    y = x * m.lin.k\n    m.__dict__['lin'] = B\n    y = y + m.lin.s\n    del m.__dict__['lin']\n    m.n += 1\n    return y * m.lin.k\n",
        {2: "B.s = 5.", 4: "m.lin.k = 7"},
    ),
    "g_c1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n\ndef f(x):\n    return x * operator.attrgetter('s')(A) + operator.attrgetter('A.s')(sys.modules[__name__])\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_c2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q')\nclass K: s = 2.\nM.K = K\ndef f(x):\n    return x * operator.attrgetter('K.s')(M)\n",
        {2: "K.s = 3.", 4: "M.K = A"},
    ),
    "g_c3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K: s = 2.\ndef f(x):\n    return x * type.__getattribute__(K, 's')\n",
        {2: "K.s = 3."},
    ),
    "g_c4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.s = 2.\ndef f(x):\n    return x * types.ModuleType.__getattribute__(M, 's')\n",
        {2: "M.s = 3."},
    ),
    "g_c5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K: s = 2.\ndef f(x):\n    return x * len(dir(K))\n",
        {2: "K.z = 3."},
    ),
    "g_c6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q')\ndef f(x):\n    return x * len(dir(M))\n",
        {2: "M.z = 3."},
    ),
    "g_c7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.s = 2.\nclass K: s = 2.\ndef f(x):\n    return x * K.__dict__['s'] + vars(K)['s'] + M.__dict__['s'] + vars(M)['s']\n",
        {2: "K.s = 3.", 4: "M.s = 4."},
    ),
    "g_c8": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.g = lambda: A.s\ndef f(x):\n    return x * operator.methodcaller('g')(M)\n",
        {2: "A.s = A.s + 1.", 4: "M.g = lambda: 9."},
    ),
    "g_c9": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nt = torch.ones(2); t.k = 2.\ndef f(x):\n    return x * float(t.__getattribute__('k')) + object.__getattribute__(t, 'k') + getattr(t, 'k') + t.k\n",
        {2: "t.k = 3."},
    ),
    "g_c10": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nt = nn.Parameter(torch.ones(2)); t.k = 2.\ndef f(x):\n    return x * operator.attrgetter('k')(t) + vars(t)['k']\n",
        {2: "t.k = 3."},
    ),
    "g_c11": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nt = torch.ones(2); t.k = 2.\ndef f(x):\n    return x * list(map(operator.attrgetter('k'), [t]))[0]\n",
        {2: "t.k = 3."},
    ),
    "g_c12": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K: s = 2.\ndef f(x):\n    return x * list(map(operator.attrgetter('s'), [K]))[0]\n",
        {2: "K.s = 3."},
    ),
    "g_c13": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.s = 2.\ndef f(x):\n    return x * list(map(operator.attrgetter('s'), [M]))[0]\n",
        {2: "M.s = 3."},
    ),
    "g_c14": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nL = [A]\ndef f(x):\n    a = sum(map(operator.attrgetter('s'), L))\n    L[0] = B\n    b = sum(map(operator.attrgetter('s'), L))\n    L[0] = A\n    return x * (a + b)\n",
        {2: "B.s = 5."},
    ),
    "g_c15": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nL = [A]\ndef f(x):\n    a = sum(map(operator.attrgetter('s'), L))\n    L.append(B)\n    b = sum(map(operator.attrgetter('s'), L))\n    L.pop()\n    return x * (a + b)\n",
        {2: "B.s = 5."},
    ),
    "g_c16": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nL = [A, B]\ndef f(x):\n    a = sorted(L, key=operator.attrgetter('s'))[0].t\n    L[0], L[1] = C, A\n    b = sorted(L, key=operator.attrgetter('s'))[0].t\n    L[0], L[1] = A, B\n    return x * (a + b)\n",
        {2: "C.s = .5"},
    ),
    "g_c17": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q')\nclass K: s = 2.\nM.K = K\ndef f(x):\n    return x * functools.reduce(getattr, ['K', 's'], M)\n",
        {2: "K.s = 3."},
    ),
    "g_c18": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.s = 2.\nclass K: s = 2.\ndef f(x):\n    return x * list(map(getattr, [K, M], ['s', 's']))[1] + list(map(getattr, [K], ['s']))[0]\n",
        {2: "K.s = 3.", 4: "M.s = 4."},
    ),
    "g_c19": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q'); M.s = 2.\nclass K: s = 2.\ndef f(x):\n    return x * functools.partial(getattr, K, 's')() + functools.partial(getattr, M, 's')()\n",
        {2: "K.s = 3.", 4: "M.s = 4."},
    ),
    "g_c20": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K: s = 2.\ndef f(x):\n    return x * inspect.getattr_static(K, 's') + inspect.getattr_static(A, 's')\n",
        {2: "K.s = 3.", 4: "A.s = A.s + 1."},
    ),
    "g_c21": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass Me(type):\n    flag = False\n    def __instancecheck__(c, o): return Me.flag\nclass K(metaclass=Me): pass\ndef f(x):\n    return x * (2. if isinstance(A, K) else 3.)\n",
        {2: "Me.flag = True"},
    ),
    "g_c22": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n\ndef f(x):\n    return x * copy.copy(A).s + copy.deepcopy(B).s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_c23": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    s = 2.\n    @classmethod\n    def get(c, n): return c.s\ndef f(x):\n    return x * next(filter(None, map(K.get, ['s'])))\n",
        {2: "K.s = 3."},
    ),
    "g_c24": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K: pass\nclass K1(K): s = 2.\ndef f(x):\n    return x * K.__subclasses__()[0].s\n",
        {2: "K1.s = 3."},
    ),
    "g_c25": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass P: s = 2.\nclass K(P): pass\ndef f(x):\n    return x * K.mro()[1].s\n",
        {2: "P.s = 3."},
    ),
    "g_c26": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K: s = 2.\ndef f(x):\n    return x * eval('K.s')\n",
        {2: "K.s = 3."},
    ),
    "g_c27": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_zz1'); M.s = 2.; sys.modules['usr_zz1'] = M\ndef f(x):\n    return x * __import__('usr_zz1').s\n",
        {2: "sys.modules['usr_zz1'].s = 3."},
    ),
    "g_c28": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_zz2'); M.s = 2.; sys.modules['usr_zz2'] = M\ndef f(x):\n    import importlib\n    return x * importlib.import_module('usr_zz2').s\n",
        {2: "sys.modules['usr_zz2'] = types.ModuleType('usr_zz2'); sys.modules['usr_zz2'].s = 3."},
    ),
    "g_c29": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nM = types.ModuleType('usr_q')\nclass K: s = 2.\ndef f(x):\n    return x * hasattr(K, 'z') + hasattr(M, 'z')\n",
        {2: "K.z = 1", 4: "M.z = 1"},
    ),
    "g_c30": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n\ndef f(x):\n    return x * int(torch.is_grad_enabled()) + (1 if torch.get_default_dtype() is torch.float32 else 2)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_c31": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K: s = 2.\ndef f(x):\n    return x * str(K.s).__len__() + K.s\n",
        {2: "K.s = 33."},
    ),
    "g_c32": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K: n = 2\ndef f(x):\n    return x * int.__add__(K.n, 1) + (K.n).__add__(2)\n",
        {2: "K.n = 33"},
    ),
    "g_c33": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nimport contextvars\nCV = contextvars.ContextVar('c', default=2.)\ndef f(x):\n    return x * CV.get()\n",
        {2: "CV.set(3.)"},
    ),
    "g_c34": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nimport weakref\nWR = weakref.ref(A)\ndef f(x):\n    return x * WR().s\n",
        {2: "A.s = A.s + 1."},
    ),
    "g_c35": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nimport weakref\nPX = weakref.proxy(A)\ndef f(x):\n    return x * PX.s + PX.s\n",
        {2: "A.s = A.s + 1."},
    ),
    "g_c36": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nDQ = collections.deque([A, B]); OD = collections.OrderedDict(a=C)\ndef f(x):\n    return x * DQ[0].s + DQ[-1].s + OD['a'].s + next(iter(OD.values())).s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_c37": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nCM_ = collections.ChainMap({}, D); DD = collections.defaultdict(lambda: B)\ndef f(x):\n    return x * CM_['a'].s + DD['zz'].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "CM_.maps[0]['a'] = C"},
    ),
    "g_c38": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nMP = types.MappingProxyType(D)\ndef f(x):\n    return x * MP['a'].s + MP['b'].s\n",
        {2: "A.s = A.s + 1.", 4: "D['b'] = C"},
    ),
    "g_c39": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n\ndef f(x):\n    return x * sum(v.s for v in itertools.chain(ITEMS, D.values())) + list(itertools.islice(ITEMS, 1))[0].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_c40": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nimport pickle\ndef pickle_s(o): return pickle.loads(pickle.dumps(vars(o)))['s']\ndef f(x):\n    return x * pickle_s(A)\n",
        {2: "A.s = A.s + 1."},
    ),
    "g_c41": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n\ndef f(x):\n    return x * json.loads(json.dumps(vars(A)))['s']\n",
        {2: "A.s = A.s + 1."},
    ),
    "g_h1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\n\ndef f(x):\n    y = m(x)\n    h = m.register_forward_hook(lambda q, i, o: o * B.s)\n    y = y + m(x)\n    h.remove()\n    return y + m(x)\n",
        {
            2: "B.s = B.s + 1.",
            4: "m.register_forward_hook(lambda q, i, o: o * A.s)",
            5: "A.s = A.s + 1.",
        },
    ),
    "g_h2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\n\ndef f(x):\n    return m2(x)\n",
        {
            2: "hh = m.register_forward_hook(lambda q, i, o: o * A.s)",
            4: "hh.remove()",
            5: "m.register_forward_pre_hook(lambda q, i: (i[0] * B.s,))",
        },
    ),
    "g_h3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\n\ndef f(x):\n    return m2(x)\n",
        {
            2: "m._forward_hooks = collections.OrderedDict({7: lambda q, i, o: o * A.s})",
            4: "A.s = A.s + 1.",
            5: "m._forward_hooks.clear()",
        },
    ),
    "g_h4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\ndef hk(q, i, o): return o * A.s\ndef f(x):\n    y = m(x)\n    m._forward_hooks[5] = hk\n    y = y + m(x)\n    del m._forward_hooks[5]\n    return y\n",
        {
            2: "A.s = A.s + 1.",
            4: "hk.__code__ = (lambda q, i, o: o * B.s).__code__",
            5: "B.s = B.s + 1.",
        },
    ),
    "g_h5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\ndef hk(q, i, o): return o * A.s\ndef f(x):\n    y = m(x)\n    old = m._forward_hooks; m._forward_hooks = collections.OrderedDict({5: hk})\n    y = y + m(x)\n    m._forward_hooks = old\n    return y\n",
        {2: "A.s = A.s + 1."},
    ),
    "g_h6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\ndef hk(q, i, o): return o * A.s\nHD = {5: hk}\ndef f(x):\n    y = m(x)\n    old = m._forward_hooks; m._forward_hooks = HD\n    y = y + m(x)\n    m._forward_hooks = old\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "HD[6] = lambda q, i, o: o * B.s", 5: "B.s = B.s + 1."},
    ),
    "g_h7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\nHD = {}; HE = m._forward_hooks\ndef f(x):\n    y = m(x)\n    m._forward_hooks = HD\n    y = y + m(x)\n    m._forward_hooks = HE\n    return y\n",
        {2: "HD[6] = lambda q, i, o: o * B.s", 4: "B.s = B.s + 1."},
    ),
    "g_h8": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\n\ndef f(x):\n    h = nn.modules.module.register_module_forward_hook(lambda q, i, o: o * A.s)\n    y = m(x)\n    h.remove()\n    return y + m(x)\n",
        {2: "A.s = A.s + 1."},
    ),
    "g_h9": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\n\ndef f(x):\n    return m2(x)\n",
        {
            2: "import torch.nn.modules.module as mm; H9 = mm.register_module_forward_hook(lambda q, i, o: o * 3)",
            4: "H9.remove()",
        },
    ),
    "g_h10": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\n\ndef f(x):\n    y = m(x)\n    m.forward = types.MethodType(lambda s, v: v * B.s, m)\n    y = y + m(x)\n    del m.forward\n    return y + m(x)\n",
        {2: "B.s = B.s + 1.", 4: "m.forward = lambda v: v * A.s; del m.forward"},
    ),
    "g_h11": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nm = nn.Linear(4, 4); m2 = nn.Sequential(m, nn.ReLU(), m)\nclass Sub(nn.Linear):\n    def forward(self, v): return super().forward(v) * B.s\ndef f(x):\n    y = m(x)\n    m.__class__ = Sub\n    y = y + m(x)\n    m.__class__ = nn.Linear\n    return y + m(x)\n",
        {2: "B.s = B.s + 1.", 4: "Sub.forward = lambda self, v: v * A.s", 5: "A.s = A.s + 1."},
    ),
    "g_h12": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def forward(self, v): return v * A.s\nfw1 = W.forward\ndef fw2(self, v, q=C): return v * B.s + q.s\ndef f(x):\n    y = W()(x)\n    W.forward = fw2\n    y = y + W()(x)\n    W.forward = fw1\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_h13": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def forward(self, v): return v * A.s\nw = W()\ndef f(x):\n    y = w(x)\n    W.__call__ = lambda self, v: v * B.s\n    y = y + w(x)\n    del W.__call__\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1."},
    ),
    "g_h14": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def forward(self, v): return v * A.s\nw = W()\ndef f(x):\n    y = w(x)\n    w._call_impl = lambda v: v * B.s\n    y = y + w(x)\n    del w._call_impl\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "w._compiled_call_impl = lambda v: v * C.s"},
    ),
    "g_h15": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def forward(self, v): return v * A.s\nw = W()\ndef f(x):\n    return w(x)\n",
        {
            2: "w._compiled_call_impl = lambda v: v * C.s",
            4: "C.s = C.s + 1.",
            5: "W._call_impl = lambda s, v: v * B.s",
        },
    ),
    "g_h16": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def forward(self, v): return v * (A.s if self.training else B.s)\nw = W()\ndef f(x):\n    w.train(not w.training)\n    y = w(x)\n    w.train(not w.training)\n    return y + w(x)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "w.eval()"},
    ),
    "g_h17": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nw = nn.Identity()\ndef f(x):\n    h = w.register_forward_hook(lambda q, i, o: o * A.s, with_kwargs=False, always_call=True, prepend=True)\n    y = w(x)\n    h.remove()\n    return y\n",
        {2: "A.s = A.s + 1."},
    ),
    "g_h18": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass S_(nn.Module):\n    def forward(self, v): return v * A.s\nS = S_()\nw = nn.Module(); w.sub = S\ndef f(x):\n    y = w.sub(x)\n    w.sub = nn.Identity()\n    y = y + w.sub(x)\n    w.sub = S\n    return y\n",
        {
            2: "A.s = A.s + 1.",
            4: "S._forward_hooks[3] = lambda m, i, o: o * B.s",
            5: "B.s = B.s + 1.",
        },
    ),
    "g_h19": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nP0 = nn.Parameter(torch.ones(4))\nw = nn.Module(); w.p = P0\ndef f(x):\n    y = w.p * x\n    w.p = nn.Parameter(torch.full((4,), B.s))\n    y = y + w.p * x\n    w.p = P0\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "P0.mul_(2.)", 5: "w.p = nn.Parameter(torch.zeros(4))"},
    ),
    "g_h20": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nA0, B0 = torch.ones(4), torch.full((4,), 2.)\nw = nn.Module(); w.register_buffer('b', A0)\ndef f(x):\n    y = w.b * x\n    w.b = B0\n    y = y + w.b * x\n    w.b = A0\n    return y + w.b\n",
        {2: "B0.mul_(2.)", 4: "A0 = torch.full((4,), 5.)"},
    ),
    "g_h21": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nA0, B0 = torch.ones(4), torch.full((4,), 2.)\nw = nn.Module(); w.register_buffer('b', A0)\ndef f(x):\n    y = w.b * x\n    del w.b\n    w.b = B0\n    y = y + w.b * x\n    del w.b\n    w.register_buffer('b', A0)\n    return y + w.b\n",
        {2: "B0.mul_(2.)", 4: "A0 = torch.full((4,), 5.)"},
    ),
    "g_h22": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nZ = nn.Parameter(torch.ones(3))\nw = nn.Linear(2, 2)\ndef f(x):\n    y = sum(p.sum() for p in w.parameters()) * x\n    w.register_parameter('z', Z)\n    y = y + sum(p.sum() for p in w.parameters())\n    del w._parameters['z']\n    return y\n",
        {2: "Z.mul_(3.)", 4: "w.register_parameter('k', nn.Parameter(torch.ones(1)))"},
    ),
    "g_h23": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nw = nn.Sequential(nn.Identity())\ndef f(x):\n    y = x * sum(1 for _ in w.named_modules())\n    w.add_module('zz', nn.Identity())\n    y = y + sum(1 for _ in w.named_modules())\n    del w.zz\n    return y\n",
        {2: "w.append(nn.Identity())"},
    ),
    "g_h24": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass S_(nn.Module):\n    def __init__(s, q): super().__init__(); s.q = q\n    def forward(self, v): return v * self.q.s\nw = nn.ModuleList([S_(A), S_(B)])\ndef f(x):\n    y = w[0](x)\n    w[0], w[1] = w[1], w[0]\n    y = y + w[0](x)\n    w[0], w[1] = w[1], w[0]\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "w[1].q = C"},
    ),
    "g_h25": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass S_(nn.Module):\n    def __init__(s, q): super().__init__(); s.q = q\n    def forward(self, v): return v * self.q.s\nSA, SB = S_(A), S_(B)\nw = nn.ModuleDict({'a': SA})\ndef f(x):\n    y = w['a'](x)\n    w['a'] = SB\n    y = y + w['a'](x)\n    w['a'] = SA\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "SB.q = C"},
    ),
    "g_cm1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n@contextlib.contextmanager\ndef cm(c):\n    o = A.t; A.t = c.s\n    try: yield c\n    finally: A.t = o\nclass CMC(contextlib.ContextDecorator):\n    def __enter__(s): A.t = B.s\n    def __exit__(s, *a): A.t = .5\n\ndef f(x):\n    with cm(B) as q: y = x * A.t + q.s\n    return y + A.t\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cm2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n@contextlib.contextmanager\ndef cm(c):\n    o = A.t; A.t = c.s\n    try: yield c\n    finally: A.t = o\nclass CMC(contextlib.ContextDecorator):\n    def __enter__(s): A.t = B.s\n    def __exit__(s, *a): A.t = .5\n\ndef f(x):\n    @cm(B)\n    def g(): return A.t\n    return x * g() + A.t\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cm3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n@contextlib.contextmanager\ndef cm(c):\n    o = A.t; A.t = c.s\n    try: yield c\n    finally: A.t = o\nclass CMC(contextlib.ContextDecorator):\n    def __enter__(s): A.t = B.s\n    def __exit__(s, *a): A.t = .5\n\ndef f(x):\n    with CMC(): y = x * A.t\n    @CMC()\n    def g(): return A.t\n    return y + g()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cm4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n@contextlib.contextmanager\ndef cm(c):\n    o = A.t; A.t = c.s\n    try: yield c\n    finally: A.t = o\nclass CMC(contextlib.ContextDecorator):\n    def __enter__(s): A.t = B.s\n    def __exit__(s, *a): A.t = .5\n\ndef f(x):\n    with contextlib.ExitStack() as s:\n        q = s.enter_context(cm(C))\n        s.callback(setattr, A, 'q', 1)\n        y = x * q.s * A.t\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cm5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n@contextlib.contextmanager\ndef cm(c):\n    o = A.t; A.t = c.s\n    try: yield c\n    finally: A.t = o\nclass CMC(contextlib.ContextDecorator):\n    def __enter__(s): A.t = B.s\n    def __exit__(s, *a): A.t = .5\n\ndef f(x):\n    with contextlib.nullcontext(B) as q, contextlib.suppress(ValueError): y = x * q.s; raise ValueError\n    return y + A.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cm6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n@contextlib.contextmanager\ndef cm(c):\n    o = A.t; A.t = c.s\n    try: yield c\n    finally: A.t = o\nclass CMC(contextlib.ContextDecorator):\n    def __enter__(s): A.t = B.s\n    def __exit__(s, *a): A.t = .5\n\ndef f(x):\n    from torch.utils.checkpoint import checkpoint\n    return checkpoint(lambda v: v * A.s * A.t, x, use_reentrant=False, context_fn=lambda: (cm(B), cm(C)))\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cm7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n@contextlib.contextmanager\ndef cm(c):\n    o = A.t; A.t = c.s\n    try: yield c\n    finally: A.t = o\nclass CMC(contextlib.ContextDecorator):\n    def __enter__(s): A.t = B.s\n    def __exit__(s, *a): A.t = .5\n\ndef f(x):\n    with torch.no_grad(), torch.inference_mode(), cm(B): y = x * A.t\n    return y + A.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cm8": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass P_(nn.Module):\n    def forward(self, w): return w * B.s\nlin = nn.Linear(4, 4)\ntorch.nn.utils.parametrize.register_parametrization(lin, 'weight', P_())\ndef f(x):\n    with torch.nn.utils.parametrize.cached(): y = lin(x)\n    return y * A.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1."},
    ),
    "g_cm9": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\n@contextlib.contextmanager\ndef cm(c=A): yield c\ndef f(x):\n    cm.__wrapped__.__defaults__ = (B,)\n    with cm() as q: return x * q.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_cm10": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass G_(contextlib.AbstractContextManager):\n    def __enter__(s): return s.c\n    def __exit__(s, *a): pass\nGL = G_(); GL.c = A\ndef f(x):\n    with GL as q: y = x * q.s\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "GL.c = B", 5: "B.s = B.s + 1."},
    ),
    "g_nt1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nNT = collections.namedtuple('NT', 'a b', defaults=(2.,))\nclass TN(typing.NamedTuple):\n    a: object\n    b: float = 3.\n@dataclasses.dataclass\nclass DC:\n    a: object\n    b: float = 3.\n    c: list = dataclasses.field(default_factory=lambda: [B.s])\n    def __post_init__(s): s.d = C.s\n\ndef f(x):\n    return x * NT(A).b + NT(A).a.s\n",
        {2: "NT.__new__.__defaults__ = (7.,)", 4: "A.s = A.s + 1."},
    ),
    "g_nt2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nNT = collections.namedtuple('NT', 'a b', defaults=(2.,))\nclass TN(typing.NamedTuple):\n    a: object\n    b: float = 3.\n@dataclasses.dataclass\nclass DC:\n    a: object\n    b: float = 3.\n    c: list = dataclasses.field(default_factory=lambda: [B.s])\n    def __post_init__(s): s.d = C.s\n\ndef f(x):\n    return x * TN(A).b + TN(A).a.s + TN._make([B, 2.])[0].s + TN(A)._replace(a=C).a.s\n",
        {2: "TN.__new__.__defaults__ = (7.,)", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_nt3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nNT = collections.namedtuple('NT', 'a b', defaults=(2.,))\nclass TN(typing.NamedTuple):\n    a: object\n    b: float = 3.\n@dataclasses.dataclass\nclass DC:\n    a: object\n    b: float = 3.\n    c: list = dataclasses.field(default_factory=lambda: [B.s])\n    def __post_init__(s): s.d = C.s\n\ndef f(x):\n    d = DC(A)\n    return x * d.b + d.a.s + d.c[0] + d.d\n",
        {
            2: "B.s = B.s + 1.",
            4: "C.s = C.s + 1.",
            5: "DC.__init__.__defaults__ = (9., *DC.__init__.__defaults__[1:])",
        },
    ),
    "g_nt4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nNT = collections.namedtuple('NT', 'a b', defaults=(2.,))\nclass TN(typing.NamedTuple):\n    a: object\n    b: float = 3.\n@dataclasses.dataclass\nclass DC:\n    a: object\n    b: float = 3.\n    c: list = dataclasses.field(default_factory=lambda: [B.s])\n    def __post_init__(s): s.d = C.s\n\ndef f(x):\n    y = x * NT(A).b\n    NT.__new__.__defaults__ = (B.s,)\n    y = y + NT(A).b\n    NT.__new__.__defaults__ = (2.,)\n    return y\n",
        {2: "B.s = B.s + 1."},
    ),
    "g_nt5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nNT = collections.namedtuple('NT', 'a b', defaults=(2.,))\nclass TN(typing.NamedTuple):\n    a: object\n    b: float = 3.\n@dataclasses.dataclass\nclass DC:\n    a: object\n    b: float = 3.\n    c: list = dataclasses.field(default_factory=lambda: [B.s])\n    def __post_init__(s): s.d = C.s\n\ndef f(x):\n    t = torch.utils._pytree.tree_map(lambda v: v * 2, NT(1., 2.))\n    return x * t.b + t.a * A.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_nt6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nNT = collections.namedtuple('NT', 'a b', defaults=(2.,))\nclass TN(typing.NamedTuple):\n    a: object\n    b: float = 3.\n@dataclasses.dataclass\nclass DC:\n    a: object\n    b: float = 3.\n    c: list = dataclasses.field(default_factory=lambda: [B.s])\n    def __post_init__(s): s.d = C.s\n\ndef f(x):\n    NT.z = property(lambda s: B)\n    y = x * NT(A).z.s\n    del NT.z\n    return y\n",
        {2: "B.s = B.s + 1."},
    ),
    "g_nt7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nNT = collections.namedtuple('NT', 'a b', defaults=(2.,))\nclass TN(typing.NamedTuple):\n    a: object\n    b: float = 3.\n@dataclasses.dataclass\nclass DC:\n    a: object\n    b: float = 3.\n    c: list = dataclasses.field(default_factory=lambda: [B.s])\n    def __post_init__(s): s.d = C.s\nN1 = NT(A); ORIG = NT.a\ndef f(x):\n    y = x * N1.a.s\n    NT.a = property(lambda s: B)\n    y = y + N1.a.s\n    NT.a = ORIG\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_mk1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    y = x * K().m()\n    k = K(); k.c = C\n    y = y + k.c.s\n    return y + K().c.t\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_mk2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    k = K(); y = x * k.m()\n    k.__class__ = K2\n    y = y + k.m() + k.c.s\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_mk3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\nom = K.m\ndef f(x):\n    k = K(); y = x * k.m()\n    K.m = K2.m\n    y = y + K().m()\n    K.m = om\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_mk4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    k = K(); y = x * k.c.s\n    k.__dict__['c'] = B\n    y = y + k.c.s\n    del k.__dict__['c']\n    return y + k.c.t\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "A.t = 9."},
    ),
    "g_mk5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    y = x * K().c.s\n    K.c = C\n    y = y + K().c.s\n    K.c = A\n    return y\n",
        {2: "C.s = C.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_mk6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    k = K(); y = x * k.c.s\n    K.c = property(lambda s: C)\n    y = y + k.c.s\n    K.c = A\n    return y\n",
        {2: "C.s = C.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_mk7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    y = x * K().c.s\n    K.__getattribute__ = lambda s, n: C\n    y = y + K().c.s\n    del K.__getattribute__\n    return y\n",
        {2: "C.s = C.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_mk8": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    y = x * K().c.s\n    del K.c\n    K.__getattr__ = lambda s, n: C\n    y = y + K().c.s\n    del K.__getattr__\n    K.c = A\n    return y\n",
        {2: "C.s = C.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_mk9": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    class Q: c = A\n    y = x * Q().c.s\n    Q.c = B\n    y = y + Q().c.s\n    return y + Q.c.t\n",
        {2: "B.s = B.s + 1.", 4: "B.t = 9."},
    ),
    "g_mk10": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    for c in ITEMS:\n        class Q: pass\n        Q.c = c\n        x = x * Q().c.s\n    return x\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_mk11": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    y = x\n    for c in ITEMS:\n        Q = type('Q', (), {'c': c}); y = y * Q().c.s; del Q; gc.collect()\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_mk12": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    k = K(); K.__setattr__ = lambda s, n, v: object.__setattr__(s, n, C)\n    k.v = A\n    y = x * k.v.s\n    del K.__setattr__\n    return y\n",
        {2: "C.s = C.s + 1."},
    ),
    "g_mk13": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    ks = [K(c) for c in ITEMS]\n    y = x\n    for k in ks: y = y * k.v.s\n    K.v = property(lambda s: B)\n    for k in ks: y = y + k.v.s\n    del K.v\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_mk14": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    d = {'a': A}\n    class E(dict): __getattr__ = dict.__getitem__\n    e = E(a=A)\n    y = x * e.a.s\n    e['a'] = B\n    y = y + e.a.s\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_mk15": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    n = NS(c=A)\n    y = x * n.c.s\n    n.c = B\n    y = y + n.c.s\n    n.__dict__ .update(c=C)\n    return y + n.c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_mk16": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass K:\n    c = A\n    def __init__(s, v=B): s.v = v\n    def m(s): return s.v.s + s.c.s\nclass K2(K):\n    c = C\n    def m(s): return C.s\n\ndef f(x):\n    s = super(K2, K2())\n    return x * s.m() + s.c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "g_ga1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass G:\n    def __getattribute__(s, n):\n        v = object.__getattribute__(s, n)\n        return B if v is A else v\ng = G(); g.c = A\n\ndef f(x):\n    object.__getattribute__(g, 'c')\n    return x * g.c.s\n",
        {2: "B.s = B.s + 1."},
    ),
    "g_ga2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass G:\n    def __getattribute__(s, n):\n        v = object.__getattribute__(s, n)\n        return B if v is A else v\ng = G(); g.c = A\n\ndef f(x):\n    return x * object.__getattribute__(g, 'c').s + g.c.s + g.c.t\n",
        {2: "B.s = B.s + 1.", 4: "A.s = A.s + 1.", 5: "B.t = 4."},
    ),
    "g_ga3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass G:\n    def __getattribute__(s, n):\n        v = object.__getattribute__(s, n)\n        return B if v is A else v\ng = G(); g.c = A\n\ndef f(x):\n    y = x * g.c.s\n    return y + g.c.t\n",
        {2: "B.s = B.s + 1.", 4: "B.t = 4."},
    ),
    "g_ga4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass G:\n    def __getattribute__(s, n):\n        v = object.__getattribute__(s, n)\n        return B if v is A else v\ng = G(); g.c = A\n\ndef f(x):\n    y = 0\n    for _ in range(3): y = x * g.c.s + y\n    return y * g.c.t\n",
        {2: "B.s = B.s + 1.", 4: "B.t = 4."},
    ),
    "g_ga5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass G:\n    def __getattribute__(s, n):\n        if n == 'd': return HOLD\n        return object.__getattribute__(s, n)\ng = G(); g.c = A; g.d = B\nHOLD = C\n\ndef f(x):\n    y = x * g.c.s\n    return y + g.d.t\n",
        {2: "C.t = 6.", 4: "A.s = A.s + 1."},
    ),
    "g_ga6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass G:\n    def __getattribute__(s, n):\n        if n == 'd': return HOLD\n        return object.__getattribute__(s, n)\ng = G(); object.__setattr__(g, 'c', A); object.__setattr__(g, 'd', B)\nHOLD = C\n\ndef f(x):\n    vars(g)\n    object.__getattribute__(g, 'd')\n    y = x * g.c.s\n    return y + g.d.t\n",
        {2: "C.t = 6.", 4: "A.s = A.s + 1."},
    ),
    "g_ga7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def __getattribute__(s, n):\n        v = super().__getattribute__(n)\n        return HOLD if n == 'c' else v\nw = W(); w.c = A\nHOLD = C\n\ndef f(x):\n    y = x * w.c.s\n    return y + w.c.t\n",
        {2: "C.t = 6.", 4: "C.s = C.s + 1."},
    ),
    "g_ga8": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def __getattr__(s, n):\n        v = super().__getattr__(n)\n        return v.inner if n == 'c' else v\nclass Wr(nn.Module):\n    def __init__(s): super().__init__(); s.inner = nn.Identity(); s.inner.k = 2.; s.inner.j = 3.; s.k = 9.; s.j = 8.\nw = W(); w.c = Wr()\n\ndef f(x):\n    y = w.c(x) * w.c.k\n    return y + w.c.j\n",
        {2: "w._modules['c'].inner.j = 6.", 4: "w._modules['c'].inner.k = 6."},
    ),
    "g_ga9": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def __getattr__(s, n):\n        v = super().__getattr__(n)\n        return ALT if n == 'p' else v\nw = W(); w.p = nn.Parameter(torch.ones(2)); w._parameters['p'].k = 5.; w._parameters['p'].j = 5.\n\ndef f(x):\n    ALT = O(k=2., j=3.)\n    y = x * w.p.k\n    return y + w.p.j\n",
        {2: "ALT.j = 6.", 4: "ALT.k = 6."},
    ),
    "g_ga10": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    def __getattr__(s, n):\n        if n == 'p': return ALT\n        return super().__getattr__(n)\nw = W(); w._parameters['p'] = nn.Parameter(torch.ones(2)); w._parameters['p'].k = 5.; w._parameters['p'].j = 5.\n\ndef f(x):\n    ALT = O(k=2., j=3.)\n    y = x * w.p.k\n    return y + w.p.j\n",
        {2: "ALT.j = 6.", 4: "ALT.k = 6."},
    ),
    "g_ga11": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module): pass\nw = W(); w.p = nn.Identity(); w.p.k = 5.\n\ndef f(x):\n    ALT = O(k=2., j=3.)\n    y = x * w.p.k\n    W.__getattr__ = lambda s, n: ALT\n    y = y + w.p.k\n    del W.__getattr__\n    return y\n",
        {2: "ALT.k = 6."},
    ),
    "g_ga12": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module): pass\nw = W(); w.p = nn.Identity(); w.p.k = 5.\n\ndef f(x):\n    ALT = O(k=2., j=3.)\n    y = x * w.p.k\n    W.p = ALT\n    y = y + w.p.k\n    del W.p\n    return y\n",
        {2: "ALT.k = 6."},
    ),
    "g_ds1": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass Dn:\n    def __get__(s, o, t=None): return B\nclass H: c = Dn()\nh = H(); h.__dict__['c'] = A\ndef f(x):\n    y = x * h.c.s\n    Dn.__set__ = lambda *a: None\n    y = y + h.c.s\n    del Dn.__set__\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_ds2": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass DD_:\n    def __get__(s, o, t=None): return B\n    def __set__(s, o, v): pass\nclass H: pass\nh = H(); h.c = A\ndef f(x):\n    y = x * h.c.s\n    H.c = DD_()\n    y = y + h.c.s\n    del H.c\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_ds3": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass Dn: s = 2.\nclass H: c = Dn()\nh = H()\ndef f(x):\n    y = x * h.c.s\n    Dn.__get__ = lambda s, o, t=None: B\n    y = y + h.c.s\n    del Dn.__get__\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "Dn.s = 5."},
    ),
    "g_ds4": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass H:\n    @functools.cached_property\n    def c(s): return A.s\nh = H(); h.c\ndef f(x):\n    y = x * h.c\n    h.__dict__.pop('c')\n    y = y + h.c\n    h.__dict__.pop('c', None)\n    return y\n",
        {2: "A.s = A.s + 1."},
    ),
    "g_ds5": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass P1: c = A\nclass P2: c = B\nclass H(P1): pass\nh = H()\ndef f(x):\n    y = x * h.c.s\n    H.__bases__ = (P2,)\n    y = y + h.c.s\n    H.__bases__ = (P1,)\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_ds6": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass P1:\n    def m(s): return A\nclass P2:\n    def m(s): return B\nclass H(P1): pass\nh = H()\ndef f(x):\n    y = x * h.m().s\n    H.__bases__ = (P2,)\n    y = y + h.m().s\n    H.__bases__ = (P1,)\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_ds7": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass P1:\n    m = None\nclass P2:\n    m = B\nclass H(P1): pass\nh = H()\ndef f(x):\n    y = x\n    if h.m is None: y = y * 2\n    H.__bases__ = (P2,)\n    y = y + h.m.s\n    H.__bases__ = (P1,)\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "A.s = A.s + 1."},
    ),
    "g_ds8": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass H:\n    m = None\nh = H()\ndef f(x):\n    y = x\n    if H.m is None: y = y * 2\n    H.m = B\n    y = y + H.m.s + h.m.t\n    H.m = None\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "B.t = 9."},
    ),
    "g_ds9": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    m = None\nw = W()\ndef f(x):\n    y = x\n    if w.m is None: y = y * 2\n    W.m = B\n    y = y + w.m.s\n    W.m = None\n    w.m = C\n    y = y + w.m.s\n    del w.m\n    return y\n",
        {2: "B.s = B.s + 1.", 4: "C.s = C.s + 1."},
    ),
    "g_ds10": (
        "ALT = O(k=2., j=3.)\nA = O(s=2., t=.5); B = O(s=3., t=.25); C = O(s=7., t=1.)\nITEMS = [A, B, C]; D = {'a': A, 'b': B}\nclass W(nn.Module):\n    m = None\nw = W(); TB = torch.ones(4)\ndef f(x):\n    y = x\n    if w.m is None: y = y * 2\n    w.register_buffer('mm', None)\n    y = y + (w.mm is None)\n    w.mm = TB\n    y = y + w.mm\n    del w.mm\n    return y\n",
        {2: "TB.mul_(2)", 4: "W.m = 3"},
    ),
    "v_walrus1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    return x * getattr(c, ('s', (c := B))[0]) + c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    return x * c.s + (c := B).s * c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus3": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    d = [A]\n    return x * d[(d := [B], 0)[1]].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus4": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    d = ITEMS\n    return x * d[(d := [B], 0)[1]].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus5": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    d = D\n    return x * d[(d := {'a': B}, 'a')[1]].s + d['a'].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus6": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * sum((y := i).s for i in ITEMS) + y.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus7": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * sum([(y := i).s for i in ITEMS]) + y.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus8": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    def q(v, w): return v.s + w.s\n    return x * q(c, (c := B))\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus9": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    return x * max(c, (c := B), key=lambda v: v.s).s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus10": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    return x * operator.attrgetter('s')(((c := B), A)[1]) + c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus11": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    d = {**vars(c), **vars(c := B)}\n    return x * d['s']\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus12": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    return x * operator.add(*map(operator.attrgetter('s'), (c, (c := B))))\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus13": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = ITEMS\n    return x * operator.getitem(c, (0, (c := [C]))[0]).s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus14": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = ITEMS\n    return x * len(list(zip(c, (c := [C])))) + c[0].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus15": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    return x * vars((c, (c := B))[0])['s']\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus16": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = D\n    return x * c.get(('b', (c := {}))[0]).s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus17": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = vars(A)\n    return x * c.get(('s', (c := {}))[0])\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus18": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = vars(A)\n    return x * dict.get(c, ('s', (c := {}))[0])\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus19": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    return x * hasattr(c, ('s', (c := 3))[0])\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_walrus20": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = vars(A)\n    return x * sum(c.values(), (c := 3.) * 0)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_del1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    y = x * c.s\n    del c\n    c = B\n    return y + c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_del2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    del c\n    try: return x * c.s\n    except UnboundLocalError: return x * B.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_unbound": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    try: return x * q.s\n    except UnboundLocalError: q = B\n    return x * q.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_unboundcell": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g(): return q.s\n    try: y = x * g()\n    except NameError: y = x\n    q = B\n    return y * g()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_exc": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    try: raise ValueError(A)\n    except ValueError as e: y = x * e.args[0].s\n    try: e\n    except NameError: y = y + B.s\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_exc2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    e = A\n    try: raise ValueError(B)\n    except ValueError as e: y = x * e.args[0].s\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_excgrp": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    try: raise ExceptionGroup('a', [ValueError(A), TypeError(B)])\n    except* ValueError as g: y = x * g.exceptions[0].args[0].s\n    except* TypeError as g: z = g.exceptions[0].args[0].s\n    return y + z\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    d = locals()\n    return x * d['c'].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    d = locals()\n    c = B\n    return x * d['c'].s + c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals3": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    d = locals()\n    k = B\n    return x * (3 if 'k' in d else 2)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals4": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    n = 0\n    for q in list(locals()): n += 1\n    return x * n\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals5": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    d = locals()\n    del c\n    return x * len(d)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals6": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    k = [c for c in ITEMS if 'c' in locals()]\n    return x * len(k) + c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals7": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    d = locals()\n    d['zz'] = B\n    def g(): return A.s\n    return x * g() * len(d) + locals().get('zz', C).s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals8": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g():\n        q = A\n        return locals()\n    return x * g()['q'].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals9": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    d = locals()\n    for i in range(2): k = ITEMS[i]\n    return x * len(d)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_locals10": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    d = locals(); n0 = len(d)\n    c.s; ITEMS[0].s\n    def h(): return c\n    return x * n0 * len(d)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_fback": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g(): return sys._getframe(1).f_locals['c'].s\n    c = A\n    y = x * g()\n    c = B\n    return y + g()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_fglob": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * sys._getframe().f_globals['A'].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_cell1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    def g(): return c.s\n    y = x * g()\n    c = B\n    return y + g()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_cell2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    def g():\n        nonlocal c\n        c = B\n        return c.s\n    y = x * c.s\n    return y * g() + c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_cell3": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    fs = [lambda: i.s for i in ITEMS]\n    return x * sum(q() for q in fs)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_cell4": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    fs = []\n    for i in ITEMS: fs.append(lambda: i.s)\n    return x * sum(q() for q in fs)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_cell5": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    fs = [lambda i=i: i.s for i in ITEMS]\n    return x * sum(q() for q in fs)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    i = A\n    y = [i.s for i in ITEMS]\n    return x * sum(y) + i.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    i = A\n    y = [[i.s for i in ITEMS] for i in range(2)]\n    return x * sum(map(sum, y)) + i.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp3": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    i = A\n    y = [(lambda: i.s)() for i in ITEMS]\n    return x * sum(y) + i.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp4": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    i = A\n    def g(): return i.s\n    y = [g() + i.t for i in ITEMS]\n    return x * sum(y)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp5": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    y = {k: v.s for k, v in D.items()}\n    return x * y['a'] + y['b']\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp6": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    try: y = [1 / 0 for i in ITEMS]\n    except ZeroDivisionError: pass\n    try: return x * i.s\n    except NameError: return x * B.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp7": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    class Q:\n        i = A\n        y = [i.s for i in ITEMS]\n        z = i.s\n    return x * sum(Q.y) + Q.z\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp8": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return eval('x * sum([i.s for i in ITEMS])', globals(), {'x': x})\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp9": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    y = [c.s for r in [ITEMS] for c in r if c.t < 1]\n    return x * sum(y)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_comp10": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    i = A\n    y = []\n    for q in [j for j in ITEMS]: y += [i.s for i in [q, i]]\n    return x * sum(y) + i.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g():\n        c = A\n        yield c.s\n        c = B\n        yield c.s\n    q = g(); y = x * next(q)\n    A_ = C.s\n    return y + next(q) + A_\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g():\n        c = A\n        while True:\n            c = yield c.s\n    q = g(); y = x * next(q)\n    return y + q.send(B) * q.send(C)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen3": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g(n):\n        if n: yield from g(n - 1)\n        yield ITEMS[n].s\n    return x * sum(g(2))\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen4": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g():\n        for i in ITEMS:\n            try: yield i\n            finally: L.append(i.s)\n    L = []\n    for v in g(): break\n    gc.collect()\n    return x * v.s + len(L)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen5": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    q = ((i, j) for i in ITEMS for j in ITEMS)\n    y = 0\n    for i, j in q: y += i.s * j.t\n    return x * y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen6": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g():\n        d = ITEMS\n        yield d[(yield 1)].s\n    q = g(); next(q)\n    return x * q.send(1)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen7": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    q1 = (i.s for i in ITEMS); q2 = (i.t for i in ITEMS)\n    y = 0\n    for a, b in zip(q1, q2): y += a * b\n    return x * y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen8": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g():\n        c = A\n        r = []\n        def h(): return c.s\n        yield h()\n        c = B\n        yield h()\n    return x * sum(g())\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen9": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g():\n        try: yield A.s\n        except ValueError as e: yield e.args[0].s\n    q = g(); y = x * next(q)\n    return y + q.throw(ValueError(B))\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_gen10": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    it = map(lambda c: c.s, ITEMS)\n    return x * next(it) + next(it)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_coro1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    async def g(c): return c.s\n    async def m():\n        return await g(A) + await g(B)\n    try: m().send(None)\n    except StopIteration as s: return x * s.value\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_coro2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    class W:\n        def __await__(s):\n            v = yield A\n            return v.s\n    async def m():\n        c = C\n        return await W() + c.s\n    q = m(); q.send(None)\n    try: q.send(B)\n    except StopIteration as s: return x * s.value\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_agen": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    async def ag():\n        for i in ITEMS: yield i.s\n    async def m(): return sum([v async for v in ag()])\n    try: m().send(None)\n    except StopIteration as s: return x * s.value\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_rec1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def r(n): return ITEMS[n].s + (r(n - 1) if n else 0)\n    return x * r(2)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_rec2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def r(c, n):\n        if n == 0: return c.s\n        k = ITEMS[n]\n        v = r(k, n - 1)\n        return v + k.t + c.s\n    return x * r(A, 2)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_execcls": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    class Q:\n        exec('c = A')\n        s = c.s\n    return x * Q.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_exec1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    d = {'A': B}\n    exec('r = A.s', d)\n    return x * d['r']\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_exec2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    d = {}\n    exec('r = A.s\\nA.q = r', globals(), d)\n    return x * d['r']\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_exec3": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    d = {'c': A}\n    exec('def g(): return c.s', d)\n    y = x * d['g']()\n    d['c'] = B\n    return y + d['g']()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_exec4": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    exec('global ZZ\\nZZ = B')\n    return x * ZZ.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_eval1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A\n    y = x * eval('c.s')\n    c = B\n    return y + eval('c.s')\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_eval2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * eval('A.s') + eval('A.s + B.s', {'A': C, 'B': B})\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_classcell": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    class Q:\n        def m(self): return __class__.s\n        s = A.s\n    return x * Q().m()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_super1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    class P:\n        def m(self): return A.s\n    class Q(P):\n        def m(self): return super().m() + B.s\n    return x * Q().m()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_super2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    class P:\n        c = A\n    class Q(P):\n        c = B\n        def m(self): return super().c.s + super(Q, self).c.s + self.c.s\n    return x * Q().m()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_match1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    match A:\n        case O(s=v, t=w): return x * v + w\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_match2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    match ITEMS:\n        case [a, *r]: return x * a.s + r[0].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_match3": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    match D:\n        case {'a': O(s=v), **r}: return x * v + r['b'].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_unpack": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    a, *b = ITEMS\n    return x * a.s + b[0].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_unpack2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    a, b = b, a = A, B\n    return x * a.s * 2 + b.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_swap": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    a, b = A, B\n    a, b = b, a\n    return x * a.s * 2 + b.t\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_chain": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    a = b = ITEMS[0]\n    b = ITEMS[1]\n    return x * a.s + b.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_cond": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = A if A.s < 100 else B\n    return x * (c or B).s + (c and B).s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_starargs": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g(*a, **k): return a[0].s + k['q'].s\n    return x * g(*[A], **{'q': B})\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_kwonly": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g(*, q=A, r=B): return q.s + r.s\n    return x * g(r=C)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_default": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g(q=A): return q.s\n    g.__defaults__ = (B,)\n    return x * g()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_code": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g(): return A.s\n    def h(): return B.s\n    g.__code__ = h.__code__\n    return x * g()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_closure": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def mk(c):\n        def g(): return c.s\n        return g\n    g, h = mk(A), mk(B)\n    return x * g() + h()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_closure2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def mk(c):\n        def g(): return c.s\n        return g\n    g = mk(A)\n    g.__closure__[0].cell_contents = B\n    return x * g()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_functype": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    g = types.FunctionType((lambda: A.s).__code__, {'A': B})\n    return x * g()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_functype2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    g = types.FunctionType((lambda: A.s).__code__, dict(globals(), A=B))\n    y = x * g()\n    return y + A.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_lamdef": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * (lambda c=A: c.s)() + (lambda *c: c[0].s)(B)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_forelse": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    for c in ITEMS:\n        if c.s > 100: break\n    else: c = B\n    return x * c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_with1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    class W:\n        def __enter__(s): return A\n        def __exit__(s, *a): return True\n    with W() as c: y = x * c.s; raise ValueError\n    return y + B.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_aug": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c = [A]\n    c += [B]\n    return x * c[1].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_aug2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    l = ITEMS\n    l = l + [B]\n    return x * l[-1].s + l[-2].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_many": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    v0 = ITEMS[0]\n    v1 = ITEMS[1]\n    v2 = ITEMS[2]\n    v3 = ITEMS[0]\n    v4 = ITEMS[1]\n    v5 = ITEMS[2]\n    v6 = ITEMS[0]\n    v7 = ITEMS[1]\n    v8 = ITEMS[2]\n    v9 = ITEMS[0]\n    v10 = ITEMS[1]\n    v11 = ITEMS[2]\n    v12 = ITEMS[0]\n    v13 = ITEMS[1]\n    v14 = ITEMS[2]\n    v15 = ITEMS[0]\n    v16 = ITEMS[1]\n    v17 = ITEMS[2]\n    v18 = ITEMS[0]\n    v19 = ITEMS[1]\n    v20 = ITEMS[2]\n    v21 = ITEMS[0]\n    v22 = ITEMS[1]\n    v23 = ITEMS[2]\n    v24 = ITEMS[0]\n    v25 = ITEMS[1]\n    v26 = ITEMS[2]\n    v27 = ITEMS[0]\n    v28 = ITEMS[1]\n    v29 = ITEMS[2]\n    v30 = ITEMS[0]\n    v31 = ITEMS[1]\n    v32 = ITEMS[2]\n    v33 = ITEMS[0]\n    v34 = ITEMS[1]\n    v35 = ITEMS[2]\n    v36 = ITEMS[0]\n    v37 = ITEMS[1]\n    v38 = ITEMS[2]\n    v39 = ITEMS[0]\n    v40 = ITEMS[1]\n    v41 = ITEMS[2]\n    v42 = ITEMS[0]\n    v43 = ITEMS[1]\n    v44 = ITEMS[2]\n    v45 = ITEMS[0]\n    v46 = ITEMS[1]\n    v47 = ITEMS[2]\n    v48 = ITEMS[0]\n    v49 = ITEMS[1]\n    v50 = ITEMS[2]\n    v51 = ITEMS[0]\n    v52 = ITEMS[1]\n    v53 = ITEMS[2]\n    v54 = ITEMS[0]\n    v55 = ITEMS[1]\n    v56 = ITEMS[2]\n    v57 = ITEMS[0]\n    v58 = ITEMS[1]\n    v59 = ITEMS[2]\n    v60 = ITEMS[0]\n    v61 = ITEMS[1]\n    v62 = ITEMS[2]\n    v63 = ITEMS[0]\n    v64 = ITEMS[1]\n    v65 = ITEMS[2]\n    v66 = ITEMS[0]\n    v67 = ITEMS[1]\n    v68 = ITEMS[2]\n    v69 = ITEMS[0]\n    v70 = ITEMS[1]\n    v71 = ITEMS[2]\n    v72 = ITEMS[0]\n    v73 = ITEMS[1]\n    v74 = ITEMS[2]\n    v75 = ITEMS[0]\n    v76 = ITEMS[1]\n    v77 = ITEMS[2]\n    v78 = ITEMS[0]\n    v79 = ITEMS[1]\n    v80 = ITEMS[2]\n    v81 = ITEMS[0]\n    v82 = ITEMS[1]\n    v83 = ITEMS[2]\n    v84 = ITEMS[0]\n    v85 = ITEMS[1]\n    v86 = ITEMS[2]\n    v87 = ITEMS[0]\n    v88 = ITEMS[1]\n    v89 = ITEMS[2]\n    v90 = ITEMS[0]\n    v91 = ITEMS[1]\n    v92 = ITEMS[2]\n    v93 = ITEMS[0]\n    v94 = ITEMS[1]\n    v95 = ITEMS[2]\n    v96 = ITEMS[0]\n    v97 = ITEMS[1]\n    v98 = ITEMS[2]\n    v99 = ITEMS[0]\n    v100 = ITEMS[1]\n    v101 = ITEMS[2]\n    v102 = ITEMS[0]\n    v103 = ITEMS[1]\n    v104 = ITEMS[2]\n    v105 = ITEMS[0]\n    v106 = ITEMS[1]\n    v107 = ITEMS[2]\n    v108 = ITEMS[0]\n    v109 = ITEMS[1]\n    v110 = ITEMS[2]\n    v111 = ITEMS[0]\n    v112 = ITEMS[1]\n    v113 = ITEMS[2]\n    v114 = ITEMS[0]\n    v115 = ITEMS[1]\n    v116 = ITEMS[2]\n    v117 = ITEMS[0]\n    v118 = ITEMS[1]\n    v119 = ITEMS[2]\n    v120 = ITEMS[0]\n    v121 = ITEMS[1]\n    v122 = ITEMS[2]\n    v123 = ITEMS[0]\n    v124 = ITEMS[1]\n    v125 = ITEMS[2]\n    v126 = ITEMS[0]\n    v127 = ITEMS[1]\n    v128 = ITEMS[2]\n    v129 = ITEMS[0]\n    v130 = ITEMS[1]\n    v131 = ITEMS[2]\n    v132 = ITEMS[0]\n    v133 = ITEMS[1]\n    v134 = ITEMS[2]\n    v135 = ITEMS[0]\n    v136 = ITEMS[1]\n    v137 = ITEMS[2]\n    v138 = ITEMS[0]\n    v139 = ITEMS[1]\n    v140 = ITEMS[2]\n    v141 = ITEMS[0]\n    v142 = ITEMS[1]\n    v143 = ITEMS[2]\n    v144 = ITEMS[0]\n    v145 = ITEMS[1]\n    v146 = ITEMS[2]\n    v147 = ITEMS[0]\n    v148 = ITEMS[1]\n    v149 = ITEMS[2]\n    v150 = ITEMS[0]\n    v151 = ITEMS[1]\n    v152 = ITEMS[2]\n    v153 = ITEMS[0]\n    v154 = ITEMS[1]\n    v155 = ITEMS[2]\n    v156 = ITEMS[0]\n    v157 = ITEMS[1]\n    v158 = ITEMS[2]\n    v159 = ITEMS[0]\n    v160 = ITEMS[1]\n    v161 = ITEMS[2]\n    v162 = ITEMS[0]\n    v163 = ITEMS[1]\n    v164 = ITEMS[2]\n    v165 = ITEMS[0]\n    v166 = ITEMS[1]\n    v167 = ITEMS[2]\n    v168 = ITEMS[0]\n    v169 = ITEMS[1]\n    v170 = ITEMS[2]\n    v171 = ITEMS[0]\n    v172 = ITEMS[1]\n    v173 = ITEMS[2]\n    v174 = ITEMS[0]\n    v175 = ITEMS[1]\n    v176 = ITEMS[2]\n    v177 = ITEMS[0]\n    v178 = ITEMS[1]\n    v179 = ITEMS[2]\n    v180 = ITEMS[0]\n    v181 = ITEMS[1]\n    v182 = ITEMS[2]\n    v183 = ITEMS[0]\n    v184 = ITEMS[1]\n    v185 = ITEMS[2]\n    v186 = ITEMS[0]\n    v187 = ITEMS[1]\n    v188 = ITEMS[2]\n    v189 = ITEMS[0]\n    v190 = ITEMS[1]\n    v191 = ITEMS[2]\n    v192 = ITEMS[0]\n    v193 = ITEMS[1]\n    v194 = ITEMS[2]\n    v195 = ITEMS[0]\n    v196 = ITEMS[1]\n    v197 = ITEMS[2]\n    v198 = ITEMS[0]\n    v199 = ITEMS[1]\n    v200 = ITEMS[2]\n    v201 = ITEMS[0]\n    v202 = ITEMS[1]\n    v203 = ITEMS[2]\n    v204 = ITEMS[0]\n    v205 = ITEMS[1]\n    v206 = ITEMS[2]\n    v207 = ITEMS[0]\n    v208 = ITEMS[1]\n    v209 = ITEMS[2]\n    v210 = ITEMS[0]\n    v211 = ITEMS[1]\n    v212 = ITEMS[2]\n    v213 = ITEMS[0]\n    v214 = ITEMS[1]\n    v215 = ITEMS[2]\n    v216 = ITEMS[0]\n    v217 = ITEMS[1]\n    v218 = ITEMS[2]\n    v219 = ITEMS[0]\n    v220 = ITEMS[1]\n    v221 = ITEMS[2]\n    v222 = ITEMS[0]\n    v223 = ITEMS[1]\n    v224 = ITEMS[2]\n    v225 = ITEMS[0]\n    v226 = ITEMS[1]\n    v227 = ITEMS[2]\n    v228 = ITEMS[0]\n    v229 = ITEMS[1]\n    v230 = ITEMS[2]\n    v231 = ITEMS[0]\n    v232 = ITEMS[1]\n    v233 = ITEMS[2]\n    v234 = ITEMS[0]\n    v235 = ITEMS[1]\n    v236 = ITEMS[2]\n    v237 = ITEMS[0]\n    v238 = ITEMS[1]\n    v239 = ITEMS[2]\n    v240 = ITEMS[0]\n    v241 = ITEMS[1]\n    v242 = ITEMS[2]\n    v243 = ITEMS[0]\n    v244 = ITEMS[1]\n    v245 = ITEMS[2]\n    v246 = ITEMS[0]\n    v247 = ITEMS[1]\n    v248 = ITEMS[2]\n    v249 = ITEMS[0]\n    v250 = ITEMS[1]\n    v251 = ITEMS[2]\n    v252 = ITEMS[0]\n    v253 = ITEMS[1]\n    v254 = ITEMS[2]\n    v255 = ITEMS[0]\n    v256 = ITEMS[1]\n    v257 = ITEMS[2]\n    v258 = ITEMS[0]\n    v259 = ITEMS[1]\n    v260 = ITEMS[2]\n    v261 = ITEMS[0]\n    v262 = ITEMS[1]\n    v263 = ITEMS[2]\n    v264 = ITEMS[0]\n    v265 = ITEMS[1]\n    v266 = ITEMS[2]\n    v267 = ITEMS[0]\n    v268 = ITEMS[1]\n    v269 = ITEMS[2]\n    v270 = ITEMS[0]\n    v271 = ITEMS[1]\n    v272 = ITEMS[2]\n    v273 = ITEMS[0]\n    v274 = ITEMS[1]\n    v275 = ITEMS[2]\n    v276 = ITEMS[0]\n    v277 = ITEMS[1]\n    v278 = ITEMS[2]\n    v279 = ITEMS[0]\n    v280 = ITEMS[1]\n    v281 = ITEMS[2]\n    v282 = ITEMS[0]\n    v283 = ITEMS[1]\n    v284 = ITEMS[2]\n    v285 = ITEMS[0]\n    v286 = ITEMS[1]\n    v287 = ITEMS[2]\n    v288 = ITEMS[0]\n    v289 = ITEMS[1]\n    v290 = ITEMS[2]\n    v291 = ITEMS[0]\n    v292 = ITEMS[1]\n    v293 = ITEMS[2]\n    v294 = ITEMS[0]\n    v295 = ITEMS[1]\n    v296 = ITEMS[2]\n    v297 = ITEMS[0]\n    v298 = ITEMS[1]\n    v299 = ITEMS[2]\n    return x * v0.s + v7.s + v14.s + v21.s + v28.s + v35.s + v42.s + v49.s + v56.s + v63.s + v70.s + v77.s + v84.s + v91.s + v98.s + v105.s + v112.s + v119.s + v126.s + v133.s + v140.s + v147.s + v154.s + v161.s + v168.s + v175.s + v182.s + v189.s + v196.s + v203.s + v210.s + v217.s + v224.s + v231.s + v238.s + v245.s + v252.s + v259.s + v266.s + v273.s + v280.s + v287.s + v294.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_manyargs": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, a33, a34, a35, a36, a37, a38, a39, a40, a41, a42, a43, a44, a45, a46, a47, a48, a49, a50, a51, a52, a53, a54, a55, a56, a57, a58, a59, a60, a61, a62, a63, a64, a65, a66, a67, a68, a69, a70, a71, a72, a73, a74, a75, a76, a77, a78, a79, a80, a81, a82, a83, a84, a85, a86, a87, a88, a89, a90, a91, a92, a93, a94, a95, a96, a97, a98, a99, a100, a101, a102, a103, a104, a105, a106, a107, a108, a109, a110, a111, a112, a113, a114, a115, a116, a117, a118, a119, a120, a121, a122, a123, a124, a125, a126, a127, a128, a129, a130, a131, a132, a133, a134, a135, a136, a137, a138, a139, a140, a141, a142, a143, a144, a145, a146, a147, a148, a149, a150, a151, a152, a153, a154, a155, a156, a157, a158, a159, a160, a161, a162, a163, a164, a165, a166, a167, a168, a169, a170, a171, a172, a173, a174, a175, a176, a177, a178, a179, a180, a181, a182, a183, a184, a185, a186, a187, a188, a189, a190, a191, a192, a193, a194, a195, a196, a197, a198, a199, a200, a201, a202, a203, a204, a205, a206, a207, a208, a209, a210, a211, a212, a213, a214, a215, a216, a217, a218, a219, a220, a221, a222, a223, a224, a225, a226, a227, a228, a229, a230, a231, a232, a233, a234, a235, a236, a237, a238, a239, a240, a241, a242, a243, a244, a245, a246, a247, a248, a249, a250, a251, a252, a253, a254, a255, a256, a257, a258, a259): return a259.s + a0.s\n    return x * g(*([A] * 259), B)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_bigconst": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    y = x\n    for i in range(3):\n        c = ITEMS[i]\n        y = y * c.s\n        del c\n    return y\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_trace1": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    import traceback\n    try: 1 / 0\n    except Exception as e: tb = e.__traceback__\n    return x * tb.tb_frame.f_locals['x'].shape[0] * A.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_nonlocal2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    n = A\n    def inc():\n        nonlocal n\n        m = n\n        n = B if n is A else C\n        return m.s\n    return x * inc() + inc() + inc()\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_typeparam": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    def g[T](c: T): return c.s\n    return x * g(A)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_fstr": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * float(f'{A.s}') + float(f'{B.s:.2f}')\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_strfmt": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * float('{0.s}'.format(A)) + float('%(s)s' % vars(B))\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_strfmt2": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * float('{.s}'.format(M)) + float('{0.s}'.format(K))\n",
        {2: "M.s = 5.", 4: "K.s = 6."},
    ),
    "v_slotstack": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * [A, B, C][ITEMS.index(B)].s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_ifexp": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * (A if (q := len(ITEMS)) > 2 else B).s * (ITEMS[q - 1] if q else A).s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_cmpchain": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    return x * 2 if 0 < A.s < B.s < 100 else x\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_annot": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    c: O = A\n    return x * c.s\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "v_lambdarec": (
        "+M = types.ModuleType('usr_m'); M.s = 2.\nclass K: s = 3.\ndef f(x):\n    Y = lambda f: (lambda n: ITEMS[n].s + (f(f)(n - 1) if n else 0))\n    return x * Y(Y)(2)\n",
        {2: "A.s = A.s + 1.", 4: "B.s = B.s + 1.", 5: "C.s = C.s + 1."},
    ),
    "dies1": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nh = O(o=K()); r = weakref.ref(h.o)\ndef f(x):\n    o = r()\n    return x if o is None else x * o.s\n",
        {2: "h.o.s = 3.", 4: "h.o = None"},
    ),
    "dies2": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nh = O(o=K(), p=K(3.)); d = weakref.WeakKeyDictionary({h.o: 2., h.p: 5.})\ndef f(x): return x * sum(d.values())\n",
        {3: "h.p = None", 5: "h.o = None"},
    ),
    "dies3": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nh = O(o=K()); d = weakref.WeakValueDictionary(a=h.o)\ndef f(x):\n    o = d.get('a')\n    return x if o is None else o.m(x)\n",
        {3: "h.o = None", 5: "h.o = d['a'] = K(7.)"},
    ),
    "dies4": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nh = O(o=K(), p=K(3.)); d = weakref.WeakSet([h.o, h.p])\ndef f(x): return x * sum(o.s for o in d)\n",
        {3: "h.p = None", 5: "h.p = K(5.); d.add(h.p)"},
    ),
    "dies5": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nh = O(o=K()); r = weakref.WeakMethod(h.o.m)\ndef f(x):\n    m = r()\n    return x if m is None else m(x)\n",
        {2: "h.o.s = 3.", 4: "h.o = None"},
    ),
    "dies6": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nh = O(o=K()); e = weakref.finalize(h.o, int)\ndef f(x): return x * 2 if e.alive else x\n",
        {3: "h.o = None"},
    ),
    "dies7": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nh = O(o=K()); e = weakref.finalize(h.o, int)\ndef f(x): return x * 2 if e.peek() else x\n",
        {3: "e.detach()"},
    ),
    "dies8": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nh = O(o=K()); gone = []; r = weakref.ref(h.o, gone.append)\ndef f(x):\n    o = r()\n    return x * (1. if o is None else o.s) + len(gone)\n",
        {3: "h.o = None"},
    ),
    "dies9": (
        "\nimport weakref\nclass K:\n    def __init__(self, s=2.): self.s = s\n    def m(self, x): return x * self.s\nclass R(weakref.ref): pass\nh = O(o=K()); r = R(h.o)\ndef f(x):\n    o = r.__call__()\n    return x if o is None else x * o.s\n",
        {2: "h.o.s = 3.", 4: "h.o = None"},
    ),
    "root1": (
        "\ndef h(x, k): return x * k\nf = functools.partial(h, k=2.)\n",
        {
            2: "f.__setstate__((h, (), {'k': 9.}, None))",
            4: "f.__setstate__((lambda x, k: x - k, (), {'k': 1.}, None))",
            6: "f.keywords['k'] = 4.",
        },
    ),
    "root2": (
        "\ndef h(x, k, j=0.): return x * k + j\nclass P(functools.partial): pass\nf = P(P(h, k=2.), j=1.)\n",
        {
            2: "f.func.__setstate__((h, (), {'k': 3.}, {})) if type(f.func) is P else f.keywords.update(k=3.)",
            4: "f.__setstate__((h, (), {'k': 1., 'j': 9.}, {}))",
        },
    ),
    "root3": (
        "\nclass C:\n    def __call__(self, x): return x * 2\nclass D:\n    def __call__(self, x): return x * 3\nf = C()\n",
        {2: "f.__class__ = D", 4: "f.__class__ = C", 6: "C.__call__ = lambda self, x: x - 1"},
    ),
    "root4": (
        "\nf = functools.partial(nn.Linear(4, 4)); other = nn.Linear(4, 4)\n",
        {3: "f.__setstate__((other, (), {}, {}))"},
    ),
    "cast1": (
        "\ntorch_default = torch.get_autocast_dtype('cpu')\nlayer = nn.Linear(4, 4)\ndef f(x):\n    with torch.autocast('cpu'): return layer(x)\n",
        {
            2: "torch.set_autocast_dtype('cpu', torch.float16)",
            4: "torch.set_autocast_dtype('cpu', torch.bfloat16)",
        },
    ),
    "cast2": (
        "\ntorch_default = torch.get_autocast_dtype('cpu')\nlayer = nn.Linear(4, 4)\ndef f(x):\n    with torch.amp.autocast('cpu'): return layer(x).float(), torch.get_autocast_dtype('cpu')\n",
        {
            2: "torch.set_autocast_dtype('cpu', torch.float16)",
            4: "torch.set_autocast_dtype('cpu', torch.bfloat16)",
        },
    ),
    "cast3": (
        "\ntorch_default = torch.get_autocast_dtype('cpu')\nlayer = nn.Linear(4, 4)\ndtype = torch.float16\ndef f(x):\n    with torch.autocast('cpu', dtype=dtype):\n        y = layer(x)\n        with torch.autocast('cpu', enabled=False): y = y.float() + layer(x)\n        with torch.autocast('cpu'): return layer(y), torch.is_autocast_enabled('cpu')\n",
        {
            2: "torch.set_autocast_dtype('cpu', torch.float16)",
            4: "dtype = torch.bfloat16",
            6: "torch.set_autocast_dtype('cpu', torch.bfloat16)",
        },
    ),
    "cast4": (
        "\ntorch_default = torch.get_autocast_dtype('cpu')\nlayer = nn.Linear(4, 4)\n@torch.autocast('cpu', dtype=torch.float16)\ndef f(x):\n    with torch.autocast('cpu', enabled=False): y = layer(x)\n    return layer(x) + y, torch.get_autocast_dtype('cpu')\n",
        {
            2: "torch.set_autocast_dtype('cpu', torch.float16)",
            4: "torch.set_autocast_dtype('cpu', torch.bfloat16)",
        },
    ),
}

# A source that makes `h` of a class `H`, and how its attribute is read.
HOLDERS = {
    "plain": ("class H: pass\nh = H(); h.cfg = A\n", "h.cfg", True),
    "plaincls": ("class H: cfg = A\nh = H()\n", "h.cfg", True),
    "mod": ("class H(nn.Module): pass\nh = H(); h.cfg = A\n", "h.cfg", True),
    "modcls": ("class H(nn.Module): cfg = A\nh = H()\n", "h.cfg", True),
    "modcall": (
        "class H(nn.Module):\n    def forward(self, x): return x * self.cfg.s\nh = H(); h.cfg = A\n",
        "h.cfg",
        True,
    ),
    "child": (
        "class H(nn.Module): pass\nh = H()\nA = nn.Identity(); A.s = 2.; A.t = .5\nB = nn.Identity(); B.s = 3.; B.t = .25\nh.cfg = A\n",
        "h.cfg",
        True,
    ),
    "none": ("class H: cfg = None\nh = H()\nclass NoneO: pass\n", "(h.cfg or A)", True),
    "modnone": ("class H(nn.Module): cfg = None\nh = H()\n", "(h.cfg or A)", True),
    "modty": ("h = types.ModuleType('usr_zz'); h.cfg = A\nH = type(h)\n", "h.cfg", False),
    "cls": ("class H: cfg = A\nh = H\n", "h.cfg", True),
    "sub": ("class P: cfg = A\nclass H(P): pass\nh = H()\n", "h.cfg", True),
    "fnattr": ("def h(): pass\nh.cfg = A\n", "h.cfg", False),
    "slots": ("class H: __slots__ = ('cfg', '__weakref__')\nh = H(); h.cfg = A\n", "h.cfg", True),
    "tens": ("h = torch.ones(2); h.cfg = A\nH = None\n", "h.cfg", False),
    "param": ("h = nn.Parameter(torch.ones(2)); h.cfg = A\n", "h.cfg", False),
    "dictsub": ("class H(dict): pass\nh = H(); h.cfg = A\n", "h.cfg", True),
    "ga": (
        "class H:\n    def __getattr__(self, n): return A if n == 'cfg' else object.__getattribute__(self, n)\nh = H()\n",
        "h.cfg",
        True,
    ),
    "dc": ("@dataclasses.dataclass\nclass H:\n    cfg: object\nh = H(A)\n", "h.cfg", True),
    "inh": (
        "class P(nn.Module):\n    cfg = A\n    def get(self): return self.cfg\nclass H(P): pass\nh = H()\n",
        "h.get()",
        True,
    ),
    "local": ("class H(threading.local): pass\nh = H(); h.cfg = A\n", "h.cfg", True),
    "ns": ("h = NS(cfg=A)\n", "h.cfg", False),
}
# How it changes in the middle of a run, and how it is put back.
CHANGES = {
    "setattr": ("h.cfg = B", "h.cfg = A"),
    "setattrf": ("setattr(h, 'cfg', B)", "setattr(h, 'cfg', A)"),
    "osetattr": ("object.__setattr__(h, 'cfg', B)", "object.__setattr__(h, 'cfg', A)"),
    "msetattr": ("h.__setattr__('cfg', B)", "h.__setattr__('cfg', A)"),
    "dict": ("h.__dict__['cfg'] = B", "h.__dict__['cfg'] = A"),
    "dictdel": ("h.__dict__['cfg'] = B", "del h.__dict__['cfg']"),
    "vars": ("vars(h).update(cfg=B)", "vars(h).update(cfg=A)"),
    "varspop": ("vars(h).update(cfg=B)", "vars(h).pop('cfg')"),
    "odict": ("dict.__setitem__(h.__dict__, 'cfg', B)", "dict.__setitem__(h.__dict__, 'cfg', A)"),
    "repl": ("h.__dict__ = dict(h.__dict__, cfg=B)", "h.__dict__ = dict(h.__dict__, cfg=A)"),
    "repl2": ("old = h.__dict__; h.__dict__ = {**old, 'cfg': B}", "h.__dict__ = old"),
    "prop": ("H.cfg = property(lambda s: B)", "del H.cfg"),
    "prop2": (
        "oldc = H.__dict__.get('cfg'); H.cfg = property(lambda s: B, lambda s, v: None)",
        "H.cfg = oldc",
    ),
    "clsset": ("oldc = H.__dict__.get('cfg'); H.cfg = B", "H.cfg = oldc"),
    "clsset2": ("setattr(H, 'cfg', B)", "setattr(H, 'cfg', A)"),
    "typeset": ("type.__setattr__(H, 'cfg', B)", "type.__setattr__(H, 'cfg', A)"),
    "ga": (
        "H.__getattribute__ = lambda s, n: B if n == 'cfg' else object.__getattribute__(s, n)",
        "del H.__getattribute__",
    ),
    "klass": (
        "K = type('K', (H,), {'cfg': property(lambda s: B)}); h.__class__ = K",
        "h.__class__ = H",
    ),
    "klass2": ("h.__class__ = K2", "h.__class__ = H"),
    "map": ("list(map(setattr, [h], ['cfg'], [B]))", "list(map(setattr, [h], ['cfg'], [A]))"),
    "partial": (
        "functools.partial(setattr, h, 'cfg')(B)",
        "functools.partial(setattr, h, 'cfg')(A)",
    ),
    "exec": ("exec('h.cfg = B', globals())", "exec('h.cfg = A', globals())"),
    "methc": (
        "operator.methodcaller('__setattr__', 'cfg', B)(h)",
        "operator.methodcaller('__setattr__', 'cfg', A)(h)",
    ),
    "opset": ("operator.setitem(h.__dict__, 'cfg', B)", "operator.setitem(h.__dict__, 'cfg', A)"),
    "del": ("sv = h.cfg; del h.cfg", "h.cfg = sv"),
    "mocklike": (
        "import unittest.mock as um; pp = um.patch.object(h, 'cfg', B); pp.start()",
        "pp.stop()",
    ),
    "swapA": ("A, B = B, A; h.cfg = A", "A, B = B, A; h.cfg = A"),
    "ior": ("h.__dict__.__ior__({'cfg': B})", "h.__dict__.__ior__({'cfg': A})"),
    "mods": ("h._modules['cfg'] = B", "h._modules['cfg'] = A"),
    "regm": ("h.register_module('cfg', B)", "h.register_module('cfg', A)"),
    "hidemod": ("h.__dict__['cfg'] = B", "del h.__dict__['cfg']"),
    "hidemod2": ("h._buffers['cfg'] = B", "del h._buffers['cfg']"),
    "hidemod3": ("h._parameters['cfg'] = B", "h._parameters.pop('cfg')"),
    "modsrepl": ("om = h._modules; h._modules = dict(om, cfg=B)", "h._modules = om"),
    "setst": ("h.__setstate__(dict(h.__dict__, cfg=B))", "h.__setstate__(dict(h.__dict__, cfg=A))"),
}
