"""The rules for names, for one machine and for clusters: which versions a name keeps, and what aliases may point to.

The rules are pure functions on the records of single names. `app.store` reads the records from SQLite in a transaction.
A cluster reads them from its catalogue in etcd (`app.cluster.catalogue`). Each then writes what has changed.
"""
