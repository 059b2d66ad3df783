"""`python -m app.cli` is the command `gathernd`."""

from gathernd_cli import main

main()
