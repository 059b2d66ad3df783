"""The rules of names, for one machine and for clusters: which versions a name keeps, and what aliases may point to.

They are pure functions over the records of single names. `app.store` reads the records from SQLite within a
transaction, a cluster from its catalogue in etcd (`app.cluster.catalogue`); each writes the difference.
"""
