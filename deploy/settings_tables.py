"""Writes the tables of settings into docs/reference/settings.md: `make generated` runs it."""

from __future__ import annotations

import re
from pathlib import Path

from app.settings import settings_tables

PAGE = Path(__file__).parents[1] / "docs/reference/settings.md"


def main() -> None:
    """Replace what is between the markers of the page."""
    tables = f"<!-- settings -->\n{settings_tables()}\n<!-- /settings -->"
    PAGE.write_text(
        re.sub("<!-- settings -->.*<!-- /settings -->", lambda _: tables, PAGE.read_text(), flags=re.DOTALL)
    )


if __name__ == "__main__":
    main()
