"""Row keys: a column with one distinct key for each row, and the index that maps keys to rows."""
