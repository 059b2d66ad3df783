"""`python -m gathernd_cli` is the `gathernd` command."""

from . import main

main()
