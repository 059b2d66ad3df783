"""`python -m app.cli` is the `gathernd` command."""

from gathernd_cli import main

main()
