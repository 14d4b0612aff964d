"""stowage run: any script under a byte limit, or watched, with nothing changed in it.

    stowage run --budget 6GiB train.py ARGS

    arguments.py    what the command line says
    launch.py       the script takes this process's place; its Python, and those of its children, begin with site/
    site/           what such a Python does first: it waits for torch
    around.py       once torch is there: the limit, the watching, the live line, the end
    screen.py       what is said at the end

The process is the script's own, so its exit code, signals, streams, arguments and modules are what they would be
without stowage."""
