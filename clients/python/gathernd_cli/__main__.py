"""`python -m gathernd_cli` is the command `gathernd`."""

from . import main

main()
