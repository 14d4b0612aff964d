"""python -m stowage: the same as the command `stowage`."""

from stowage.command import main

main()
