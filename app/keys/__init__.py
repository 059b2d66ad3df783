"""Keys of rows: a column with one distinct key for each row, and the index from key to row."""
