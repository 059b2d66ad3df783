"""Pages for people: the front page and one page for each code of the catalogue. Nothing is loaded from elsewhere."""
