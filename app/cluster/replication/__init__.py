"""How the replicas of a range agree on its scatters: pure rules that shards carry out and the simulation checks.

A range has one primary and replicas that are in sync; its record in the catalogue says who they are, at which epoch.
Each scatter is a record with a sequence. The primary appends it to its log, ships it, and once every in-sync replica
has it durably, it is **committed**: it is applied, readers see it, and the caller may be answered. The log after
`applied` is the **tail**: durable, perhaps committed, seen by nobody.

    replica.py    what a replica does with records that come, and with a copy of the rows
    primary.py    who may create records, when they are committed, who joins and who leaves
    reads.py      who may answer a read

Rules that the rest follows from:

1. **(sequence, epoch) names one record for ever.** An epoch has one primary. It ships a record only once the record is
   durable in its own log, so that no process of it makes another one with the same name after a crash.
2. **Own epoch.** Each replica keeps the highest epoch it has seen, durably, and refuses lower ones. It judges the epoch
   before it waits for the tensor's lock, so that two primaries do not wait for each other.
3. **A primary creates records only if its own epoch equals that of the record in the catalogue that it knows.** Before
   it lets a replica join it raises its own epoch to the one that the transaction will write. A process of it that does
   not know of the join then cannot commit without the new replica. If the transaction does not come about, the
   primary raises the epoch in the catalogue (`raise_epoch`).
4. **Committed** means: durable on every replica in `in_sync`. A catalogue that is too old names too many replicas (they
   only leave behind the primary's back), or a replica that is primary now and refuses. So what an old primary commits,
   the new one has in its log.
5. **Acknowledged** means: committed, with at least `min_in_sync` replicas. A primary may commit its tail with fewer:
   readers need it. It answers nobody then, not even a caller who repeats an old key.
6. **A primary that begins ships its whole tail to all replicas first.** Records keep their epochs. Until it has
   committed its tail it creates no record, lets nobody join and answers no caller, since a key in the tail may have
   been acknowledged.
7. **A replica applies only what it has compared.** A notice of `commit` counts up to the last record that the message
   has in common with the log: beyond that the replica may have records of a primary that was deposed.
8. **Nobody drops a tail by its own judgement**, since the catalogue it knows may be old and the tail acknowledged. Only
   records from the primary replace it, or its word that its own log ends before (`Append.last`).
9. **A replica joins with the primary's `applied`, while the primary has no tail.** So whatever was committed before, it
   has. Its answers count from the epoch of the join on.
10. **A copy is of committed rows, so it may come from any replica and outlive failovers.** It is published if it is not
    behind what the primary had applied, and the replica has nothing or still the epoch at which the primary asked for
    the copy: what is in its log then counts for nobody. The keys are read after the rows, without those above the
    copy's sequence: a record in the tail may yet go, and its key with it.
11. **Keys in a tail are not answered.** They are known once their record is applied, and go with it if it is replaced.
12. **After a start the rows may be of any earlier state**: the disk may have been put back to one, and after a loss of
    power they may hold parts of any record of the tail, since pages reach the disk in any order. Nobody reads them
    until the primary has said how far it is, and all of that is applied. The replica asks it (`Join`).
13. **A refusal that is judged by the rows** (`if_sequence`) is given only after an empty round (`Round` up to the last
    sequence, sent after the request came): a primary that was deposed would judge old rows.
14. **A primary whose rows are older than a replica's has lost them**: its store was restored from an older copy. It
   finds out from the first answer to a round, before it makes a record, and asks for another primary.

Reads are stale by at most READ_LEASE_S. A scatter is acknowledged when each in-sync replica has its record. A replica
that was in sync then has had it in its tail since: it stops serving when its tail is that old. One that had left
serves only as long as it does not know, and stops when it has not read the catalogue for that long. One case is left: a
shard and a router that were both cut off before the first scatter do not know that the range is open, and go on with
the rows that were uploaded.
"""
