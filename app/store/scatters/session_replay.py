"""Opening a replicated content: what of its log is applied, and what a process or the machine that died has left.

The tail of its log stays as it is: whether its records are committed is for the primary to say.

After a loss of power the header's words may be older than the content, and the content may have rows of any record in
the log, also of such that were committed and applied and now are in the tail. That is safe: no record leaves the log
before content and header are durable, so that all records up to the last one applied can be applied again; EPOCH is
durable before anything is logged under it; LOGGED and DURABLE_EPOCH count in one session only; and where the log has a
tail the content is unsettled, which keeps readers away, until all that may have reached it is applied. So a replica
that was told before that a record is committed has to be told again: it asks its primary.
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
    """Finish what processes that died have begun, read the log to its end, and note what of it is applied.

    Within the tensor's lock. Marks the content as damaged if its log does not have what it should. Raises
    tensor_damaged and OSError.
    """
    log, words = writable.log, writable.words
    try:
        log.read()
        if words[HeaderWord.SESSION] != session:
            writable.set_epoch(words[HeaderWord.EPOCH])
            _replay(writable)
            writable.set_words({HeaderWord.LOGGED: log.last_sequence or 0, HeaderWord.SESSION: session})
        elif log.last_sequence is not None and log.last_sequence > words[HeaderWord.LOGGED]:
            log.make_durable(log.tail[-1].begin)  # its writer died before its fsync
            writable.set_words({HeaderWord.LOGGED: log.last_sequence})
        log.settle(writable.applied)
        if words[HeaderWord.DURABLE_EPOCH] != words[HeaderWord.EPOCH]:
            writable.set_epoch(words[HeaderWord.EPOCH])
        if writable.version & 1:
            # Records are applied one by one, so that it is the first of the tail; and it is committed.
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
    """Apply once more all that is applied, in a new session. Raises BrokenLog and OSError.

    A record that was under way counts as applied from now on, so that a start which dies meanwhile finds it so.
    """
    log, words = writable.log, writable.words
    sequences = [record.entry.sequence for record in all_records(log.path)]
    applied = writable.applied
    if writable.version & 1 and words[HeaderWord.SESSION] != 0:  # while SESSION is 0, that of a replay is odd
        applied += 1
    for record in aside_records(log.path):
        applied = max(applied, record.entry.sequence)  # only what is applied is set aside
    if applied not in sequences and (writable.version & 1 or (sequences and sequences[0] <= applied)):
        raise BrokenLog
    log.make_durable(log.tail[-1].begin if log.tail else 0)
    unsettled = max([*sequences[-1:], words[HeaderWord.UNSETTLED]])
    writable.set_words({HeaderWord.UNSETTLED: unsettled})
    writable.set_applied(applied)
    writable.set_words({HeaderWord.SESSION: 0})
    if next(writable.applied_records(), None) is not None:
        writable.repair(writable.applied_records)
