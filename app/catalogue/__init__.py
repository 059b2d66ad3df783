"""The rules for names on single machines and clusters: which versions a name keeps, and what aliases may point to.

The rules are pure functions that work on the records of single names. `app.store` reads the records from SQLite in a
transaction. A cluster reads them from its catalogue in etcd (`app.cluster.catalogue`). Both then write what has
changed.
"""
