"""How the replicas of a range agree on its scatters: pure rules that shards carry out and the simulation checks.

A range has one primary and a set of in-sync replicas; its record in the catalogue lists them and their epoch. Each
scatter is a record with a sequence. The primary appends it to its log and ships it. Once every in-sync replica has the
record durably, the record is **committed**: it is applied, readers see it, and the caller may get a response. The log
after `applied` is the **tail**: durable, possibly committed, and not visible to readers.

    replica.py    what a replica does with incoming records, and with a copy of the rows
    primary.py    who may create records, when they are committed, who joins and who leaves
    reads.py      who may serve a read

The rules:

1. **(sequence, epoch) identifies one record permanently.** An epoch has one primary. It ships a record only once the
   record is durable in its own log, so none of its processes creates another record with the same sequence and epoch
   after a crash.
2. **Own epoch.** Each replica durably keeps the highest epoch it has seen, and refuses lower ones. It compares epochs
   before it waits for the tensor's lock, so that two primaries do not wait for each other.
3. **A primary creates records only if its own epoch equals that of the newest catalogue record known to it.** Before it
   lets a replica join, it raises its own epoch to the one that the transaction will write. A process of the primary
   that does not know of the join then cannot commit without the new replica. If the transaction fails, the primary
   raises the epoch in the catalogue (`raise_epoch`).
4. **Committed** means durable on every replica in `in_sync`. An outdated catalogue either lists too many replicas,
   because replicas can leave without the primary's knowledge but cannot join without it, or lists a replica that is now
   the primary and refuses. So everything that an old primary commits is in the new primary's log.
5. **Acknowledged** means committed with at least `min_in_sync` replicas. A primary may commit its tail with fewer,
   because readers need it. It then sends no caller a success response, not even one that retries an old key.
6. **A new primary first ships its whole tail to all replicas.** Records keep their epochs. Until the tail is committed,
   the primary creates no records, lets no replica join and responds to no caller, because a key in the tail may have
   been acknowledged.
7. **A replica applies only what it has compared.** A `commit` notice applies only up to the last record that the
   message and the log have in common. Later records in the log may come from a deposed primary.
8. **No replica drops a tail on its own**, because the replica's catalogue may be old and the tail may have been
   acknowledged. A tail is replaced only by records from the primary, or dropped because the primary reports that its
   own log ends earlier (`Append.last`).
9. **A replica joins at the primary's `applied`, while the primary has no tail.** So the replica has everything that was
   committed before. Its responses count starting with the epoch of the join.
10. **A copy contains committed rows, so it may come from any replica and stays valid across failovers.** A copy is
    published on two conditions. First, it is not behind what the primary had applied. Second, the replica either has
    nothing or is still at the epoch at which the primary ordered the copy; in both cases, nobody relies on the
    replica's log. The keys are read after the rows. Keys above the copy's sequence are left out, because a record in
    the tail may still be dropped, along with its key.
11. **Keys in a tail get no response.** They become known once their record is applied, and are dropped if the record is
    replaced.
12. **After a startup, the rows may be in any earlier state.** The disk may have been restored to an earlier state.
    After a power failure, the rows may hold parts of any record of the tail, because pages reach the disk in any order.
    The rows are not served until the primary has reported what is committed and all of that has been applied. The
    replica requests this report (`Join`).
13. **A refusal based on the rows** (`if_sequence`) is returned only after an empty round (a `Round` up to the last
    sequence, sent after the request arrived), because a deposed primary would decide based on old rows.
14. **A primary whose rows are older than a replica's has lost them**: its store was restored from an older copy. It
    finds this out from the first response in a round, before it creates a record, and requests another primary.

Reads are stale by at most READ_LEASE_S. A scatter is acknowledged when each in-sync replica has its record. A replica
that was in sync at that moment already had the record in its tail, and stops serving when its tail is READ_LEASE_S old.
A replica that had left serves only until it learns that it has left, or until it has not read the catalogue for
READ_LEASE_S. One case remains: a shard and a router that were both cut off before the first scatter do not know that
the range is open, so they continue to use the uploaded rows.
"""
