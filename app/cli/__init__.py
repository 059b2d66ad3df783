"""The service's commands of `gathernd`, a module each, named in pyproject.toml's entry points `gathernd.commands`.

The list of commands shows the first paragraph of each module's docstring. The script itself and the commands that call
a running service are the client's, in clients/python/gathernd_cli.
"""
