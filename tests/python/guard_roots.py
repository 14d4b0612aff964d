"""Roots of a world (guard_worlds.py): where its chain begins."""

from __future__ import annotations

# Where the chain begins: definitions (R is its source), the expression that reads it inside ``def read():``, how to
# rebind it from outside.
ROOTS = {
    "global": ("root = R\n", "root", "W.root = V"),
    "global of another module": ("other.root = R\n", "other.root", "other.root = V"),
    "imported within": ("other.root = R\n", "(lambda: __import__(OTHER).root)()", "other.root = V"),
    "from import within": ("other.root = R\n", "imported()", "other.root = V"),
    "closure": (
        "def make(root):\n    def get(): return root\n    def put(v):\n        nonlocal root\n        root = v\n    return get, put\nget, put = make(R)\n",
        "get()",
        "W.put(V)",
    ),
    "default": ("def get(x=R): return x\n", "get()", "W.get.__defaults__ = (V,)"),
    "class": ("class CFG:\n    inner = R\n", "CFG.inner", "W.CFG.inner = V"),
    "nested class": ("class CFG:\n    class Sub:\n        inner = R\n", "CFG.Sub.inner", "W.CFG.Sub.inner = V"),
    "instance": ("cfg = Obj(R)\n", "cfg.a", "W.cfg.a = V"),
    "appearing attribute": ("cfg = Obj(0)\nroot = R\n", "getattr(cfg, 'later', root)", "W.cfg.later = V"),
    "appearing global": (
        "root = R\ndef get():\n    try: return later\n    except NameError: return root\n",
        "get()",
        "W.later = V",
    ),
    "appearing attribute of a module": ("root = R\n", "getattr(other, 'later', root)", "other.later = V"),
    "appearing attribute of a class": (
        "class CFG:\n    inner = R\n",
        "(CFG.later if hasattr(CFG, 'later') else CFG.inner)",
        "W.CFG.later = V",
    ),
    "shadowed builtin": (
        "root = R\n",
        "(root if len((1,)) == 1 else None, sorted([3, 1]))[0] if len('ab') == 2 else 7",
        "W.len = lambda x: 5",
    ),
    "environment": (
        "import os\nos.environ['GUARD_WORLD'] = 'x'\nroot = R\n",
        "(os.environ.get('GUARD_WORLD'), root)[1] if os.environ.get('GUARD_WORLD') == 'x' else 7",
        "__import__('os').environ['GUARD_WORLD'] = 'y'",
    ),
    "getenv": (
        "import os\nos.environ.pop('GUARD_NEW', None)\nroot = R\n",
        "(root if os.getenv('GUARD_NEW') is None else 7)",
        "__import__('os').environ['GUARD_NEW'] = 'y'",
    ),
    "command line": (
        "import sys\nsys.argv[:] = [a for a in sys.argv if a != 'guard_world']\nroot = R\n",
        "(root if 'guard_world' not in sys.argv else 7)",
        "__import__('sys').argv.append('guard_world')",
    ),
    "command line, through a value": (
        "import sys\nsys.argv[:] = [a for a in sys.argv if a != 'guard_world']\nkept = {'sys': sys}\nroot = R\n",
        "(root if 'guard_world' not in kept['sys'].argv else 7)",
        "__import__('sys').argv.append('guard_world')",
    ),
    "membership": ("seen = {1, 2}\nroot = R\n", "(root if 3 not in seen else 7)", "W.seen.add(3)"),
    "length": ("seen = [1, 2]\nroot = R\n", "(root if len(seen) == 2 else 7)", "W.seen.append(3)"),
    "type of": (
        "cfg = Obj(R)\n",
        "(cfg.a if isinstance(cfg, Obj) and not isinstance(cfg, Doubled) else 7)",
        "W.cfg.__class__ = W.Doubled",
    ),
    "function replaced": ("root = R\ndef get(): return root\n", "get()", "W.get = lambda: V"),
    "function of another module": (
        "other.root = R\nexec('def get(): return root', other.__dict__)\n",
        "other.get()",
        "other.get = lambda: V",
    ),
    "global of a called function": (
        "other.root = R\nexec('def get(): return root', other.__dict__)\nfrom_other = other.get\n",
        "from_other()",
        "other.root = V",
    ),
    "code replaced": (
        "root = R\ndef get(): return root\ndef wrong(): return 7\n",
        "get()",
        "W.get.__code__ = W.wrong.__code__",
    ),
    "library flag": ("import json.decoder\njson.decoder.FLAG = R\n", "json.decoder.FLAG", "W.json.decoder.FLAG = V"),
    "library class": (
        "import string\nstring.Formatter.guard_world = R\n",
        "string.Formatter.guard_world",
        "W.string.Formatter.guard_world = V",
    ),
    "library class patched": (
        "import string\nroot = R\nclass F(string.Formatter):\n    pass\n",
        "(root if F().format('{}', 1) == '1' else 7)",
        "W.F.format = lambda *a: ''",
    ),
}
# The same, of modules that are read elsewhere than where they are named. (Apart, so that the others' seeds keep their worlds.)
MODULE_ROOTS = {
    "module handed on": ("other.root = R\ndef handed(m): return m.root\n", "handed(other)", "other.root = V"),
    "module returned": ("other.root = R\ndef which(): return other\n", "which().root", "other.root = V"),
    "module imported and handed on": (
        "other.root = R\ndef handed(m): return m.root\n",
        "handed(__import__('importlib').import_module(OTHER))",
        "other.root = V",
    ),
    "module in a module": (
        "other.root = R\nouter = types.ModuleType('outer')\nouter.inner = other\ndef handed(m): return m.inner.root\n",
        "handed(outer)",
        "other.root = V",
    ),
    "module of a module handed on": (
        "other.root = R\nouter = types.ModuleType('outer')\nouter.inner = other\ndef handed(m): return m.root\n",
        "handed(outer.inner)",
        "other.root = V",
    ),
    "module of a library handed on": (
        "import torchgen\ntorchgen.root = R\ndef handed(m): return m.root\n",
        "handed(torchgen)",
        "W.torchgen.root = V",
    ),
    "module of a function's globals": (
        "other.root = R\nexec('def get(m): return m.root', other.__dict__)\n",
        "other.get(other)",
        "other.root = V",
    ),
}
