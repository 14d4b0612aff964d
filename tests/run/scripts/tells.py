"""Tells what a script can know of how it was started."""

import os
import sys
import traceback

torch = __import__("torch") if "torch" in sys.argv else None
print(sys.argv, __name__, __file__, __doc__[:5], __spec__, __package__)
print(sys.path)
print(sys.modules["__main__"].__dict__ is globals(), sys.flags, sys.orig_argv[1:], os.getcwd())
print(sys.stdin.read())
print([hook.__name__ if hasattr(hook, "__name__") else type(hook).__name__ for hook in sys.meta_path])
print([frame.name for frame in traceback.extract_stack()])
print(type(sys.stdout), type(sys.stderr), sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.excepthook)
