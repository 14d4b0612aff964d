"""The first thing that a Python below ``stowage run`` does: Python imports a module of this name by itself, and finds
this one, whose folder comes first in PYTHONPATH.

It takes its folder off the path again, lets the environment's own sitecustomize have its turn, and waits for torch.
Until torch is imported nothing of stowage is, so that a Python that never trains starts as fast as it did."""

import atexit
import importlib.util
import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


def _leave_the_path():
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


def _when_torch_is_imported(then):
    """By the package's own file, without the package."""
    path = os.path.join(_PACKAGE, "_torch", "arrival.py")
    spec = importlib.util.spec_from_file_location("_stowage_arrival", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.when_imported("torch", then)


def _begin(settings):
    """Torch is there. What keeps stowage out ends a script that was to keep a limit, and is told in one line."""
    try:
        from stowage.run import around

        around.begin(settings)
    except Exception as error:
        text = " ".join(str(error).split())
        if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "stowage":
            text = f"the Python that runs this, {sys.executable}, has no stowage: install it there"
        limited = settings["budget_bytes"] is not None
        outcome = "no limit would hold" if limited else "nothing is watched"
        os.write(2, f"stowage run: {outcome}: {text}\n".encode())
        if limited:
            raise SystemExit(2) from None


def _end(settings):
    """After all that the script has registered, as this was registered before it began."""
    around = sys.modules.get("stowage.run.around")
    if around is not None:
        around.end()
    elif settings["script"] and settings["pid"] == os.getpid():
        os.write(2, b"stowage run: the script has not imported torch: there was nothing to limit or to watch\n")


def _start():
    told = os.environ.get("STOWAGE_RUN")
    if told is None:
        return
    settings = json.loads(told)
    atexit.register(_end, settings)
    _when_torch_is_imported(lambda: _begin(settings))


_leave_the_path()
_start()
