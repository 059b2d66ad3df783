"""How the replicas of a range agree on its scatters: pure rules that shards execute and the simulation checks.

A range has one primary and replicas that are in sync; its record in the catalogue names them and their epoch. Each
scatter is a record with a sequence. The primary appends it to its log and ships it. Once every in-sync replica has it
durably, it is **committed**: it is applied, readers see it, and the caller may be answered. The log after `applied` is
the **tail**: durable, possibly committed, and not visible to readers.

    replica.py    what a replica does with incoming records, and with a copy of the rows
    primary.py    who may create records, when they are committed, who joins and who leaves
    reads.py      who may answer a read

The rules:

1. **(sequence, epoch) identifies one record permanently.** An epoch has one primary. It ships a record only once the
   record is durable in its own log, so none of its processes creates another record with the same name after a crash.
2. **Own epoch.** Each replica keeps the highest epoch it has seen, durably, and refuses lower ones. It compares epochs
   before it waits for the tensor's lock, so that two primaries do not wait for each other.
3. **A primary creates records only if its own epoch equals that of the catalogue record that it knows.** Before it lets
   a replica join, it raises its own epoch to the one that the transaction will write. A process of the primary that
   does not know of the join can then not commit without the new replica. If the transaction fails, the primary raises
   the epoch in the catalogue (`raise_epoch`).
4. **Committed** means durable on every replica in `in_sync`. A catalogue that is too old lists too many replicas
   (without the primary's knowledge replicas can leave, but not join), or a replica that is now the primary and refuses.
   So whatever an old primary commits is in the new primary's log.
5. **Acknowledged** means committed with at least `min_in_sync` replicas. A primary may commit its tail with fewer,
   because readers need it. It then answers no caller, not even one that repeats an old key.
6. **A new primary first ships its whole tail to all replicas.** Records keep their epochs. Until the tail is committed,
   the primary creates no records, lets no replica join and answers no caller, because a key in the tail may have been
   acknowledged.
7. **A replica applies only what it has compared.** A `commit` notice counts up to the last record that the message has
   in common with the log. Later records in the log may come from a deposed primary.
8. **No replica drops a tail on its own**, because the catalogue it knows may be old and the tail may have been
   acknowledged. Only records from the primary replace it, or the primary's statement that its own log ends earlier
   (`Append.last`).
9. **A replica joins at the primary's `applied`, while the primary has no tail.** So it has everything that was
   committed before. Its answers count from the epoch of the join on.
10. **A copy contains committed rows, so it may come from any replica and stays valid across failovers.** It is
    published if it is not behind what the primary had applied, and the replica either has nothing or is still at the
    epoch at which the primary ordered the copy; nobody relies on the replica's log then. The keys are read after the
    rows, and keys above the copy's sequence are left out, because a record in the tail may yet be dropped, and its key
    with it.
11. **Keys in a tail are not answered.** They become known once their record is applied, and are dropped if it is
    replaced.
12. **After a start, the rows may be of any earlier state.** The disk may have been restored to an earlier state. After
    a power failure, the rows may hold parts of any record of the tail, because pages reach the disk in any order. They
    are not served until the primary has reported what is committed and all of that is applied. The replica asks for
    this (`Join`).
13. **A refusal based on the rows** (`if_sequence`) is returned only after an empty round (a `Round` up to the last
    sequence, sent after the request arrived), because a deposed primary would judge by old rows.
14. **A primary whose rows are older than a replica's has lost them**: its store was restored from an older copy. It
    finds this out from the first answer to a round, before it creates a record, and asks for another primary.

Reads are stale by at most READ_LEASE_S. A scatter is acknowledged when each in-sync replica has its record. A replica
that was in sync at that moment has had the record in its tail ever since, and stops serving when its tail is that old.
A replica that had left serves only until it learns of that, and stops when it has not read the catalogue for that long.
One case remains: a shard and a router that were both cut off before the first scatter do not know that the range is
open, and continue to use the uploaded rows.
"""
