"""The rules of names, for one machine and for clusters: which versions a name keeps, and what aliases may point to.

They are pure functions on the records of single names. `app.store` reads the records from SQLite in a transaction; a
cluster reads them from its catalogue in etcd (`app.cluster.catalogue`). Each then writes what has changed.
"""
