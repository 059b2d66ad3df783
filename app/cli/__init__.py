"""The service's commands of `gathernd`, one module each, listed in pyproject.toml as entry points `gathernd.commands`.

`gathernd --help` shows the first paragraph of each module's docstring. The script itself and the commands that call a
running service belong to the client, in clients/python/gathernd_cli.
"""
