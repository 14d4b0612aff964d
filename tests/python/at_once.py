"""Works of several threads at once."""

import faulthandler
import threading
from collections.abc import Callable, Iterable


def in_threads(works: Iterable[Callable], patience_s: float = 120) -> None:
    """Each in a thread; the first thing that one raises is raised. A hang ends the process, with the stacks of all
    threads."""
    raised = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    faulthandler.dump_traceback_later(patience_s, exit=True)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        faulthandler.cancel_dump_traceback_later()
    if raised:
        raise raised[0]
