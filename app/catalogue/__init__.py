"""The rules of names, the same on one machine and on many: which versions a name keeps, and what aliases may name.

They are pure functions over the records of single names. `app.store` reads these from SQLite within a transaction, a
cluster from its catalogue in etcd (`app.cluster.catalogue`); each writes the difference.
"""
