"""Open replicated content: find out which log records are applied, and repair what a crash has left.

The tail of the log is left alone: only the primary decides whether its records are committed.

After a power loss the header's words may be older than the content. The content may hold rows of any record in the log,
including records that were committed and applied before and now are in the tail. This is safe:

- No record leaves the log before content and header are durable, so all records up to the last applied one can be
  applied again.
- EPOCH is durable before anything is logged under it.
- LOGGED and DURABLE_EPOCH are valid in one session only.
- If the log has a tail, the content is unsettled: nobody may read it until every record that may have reached it is
  applied.

A replica that was told before the power loss that a record is committed must therefore ask its primary again.
"""

from __future__ import annotations

import logging

from app.store.files.regular_file import NotRegular
from app.store.files.tensor_file import HeaderWord
from app.store.scatters.log_frames import BrokenLog
from app.store.scatters.log_tail import tail_records
from app.store.scatters.scatter_log import all_records, aside_records
from app.store.scatters.writable_tensor import WritableTensor
from app.store.store_errors import damaged

logger = logging.getLogger("gathernd")


def make_sure(writable: WritableTensor, session: int) -> None:
    """Complete the work of processes that died, read the log to its end, and settle its applied records.

    Call it with the tensor's lock held. Marks the content as damaged if required records are missing from its log.
    Raises tensor_damaged and OSError.
    """
    log, words = writable.log, writable.words
    try:
        log.read()
        if words[HeaderWord.SESSION] != session:
            writable.set_epoch(words[HeaderWord.EPOCH])
            _replay(writable)
            writable.set_words({HeaderWord.LOGGED: log.last_sequence or 0, HeaderWord.SESSION: session})
        elif log.last_sequence is not None and log.last_sequence > words[HeaderWord.LOGGED]:
            log.make_durable(log.tail[-1].begin)  # the writer died before its fsync
            writable.set_words({HeaderWord.LOGGED: log.last_sequence})
        log.settle(writable.applied)
        if words[HeaderWord.DURABLE_EPOCH] != words[HeaderWord.EPOCH]:
            writable.set_epoch(words[HeaderWord.EPOCH])
        if writable.version & 1:
            # Records are applied one by one, so the interrupted one is the first of the tail, and it is committed.
            following = tail_records(log, writable.applied + 1)
            if not following:
                raise BrokenLog
            writable.repair(lambda: following)
            log.settle(writable.applied)
    except BrokenLog:
        logger.error("the log of %s is damaged: acknowledged changes are lost", writable.description.name)
        writable.mark_damaged()
    except NotRegular as problem:
        raise damaged(writable.description.name, f"its log cannot be read: {problem.strerror}") from None


def _replay(writable: WritableTensor) -> None:
    """In a new session, apply all applied records again. Raises BrokenLog and OSError.

    A record whose application was interrupted counts as applied from now on, so that a start that dies here finds it
    so.
    """
    log, words = writable.log, writable.words
    sequences = [record.entry.sequence for record in all_records(log.path)]
    applied = writable.applied
    if writable.version & 1 and words[HeaderWord.SESSION] != 0:  # SESSION 0: the odd version is a replay's own
        applied += 1
    for record in aside_records(log.path):
        applied = max(applied, record.entry.sequence)  # only applied records are set aside
    if applied not in sequences and (writable.version & 1 or (sequences and sequences[0] <= applied)):
        raise BrokenLog
    log.make_durable(log.tail[-1].begin if log.tail else 0)
    unsettled = max([*sequences[-1:], words[HeaderWord.UNSETTLED]])
    writable.set_words({HeaderWord.UNSETTLED: unsettled})
    writable.set_applied(applied)
    writable.set_words({HeaderWord.SESSION: 0})
    if next(writable.applied_records(), None) is not None:
        writable.repair(writable.applied_records)
