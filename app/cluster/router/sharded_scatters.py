"""Run scatters, upserts and removals on the tables of a cluster: validate them, and send each primary its range's part.

A change by key is a scatter for which the shards find the rows. Each range changes atomically, but the ranges do not
all change at the same moment. Each range receives the request's Idempotency-Key, or a key drawn at random for the
request. So the router can repeat the request, after a lost connection or at another primary, until the range reports
that it has applied its part. Retries with a caller's key go to the version that the key is bound to (`key_bindings`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final, NoReturn
from uuid import uuid4

from app.api.disk_threads import DiskThreads
from app.api.routes.tensors_scatter import ScatterOutcome, SentScatter
from app.catalogue.conditions import ALWAYS, Conditions
from app.cluster.catalogue.key_bindings import Binding
from app.cluster.range_scatter import RangeScatter, RangeScattered
from app.cluster.router.ask_primary import PrimaryAsks, RangeFailed, has_new_primary
from app.cluster.router.published_tensors import PublishedTensors
from app.cluster.router.scatter_parts import Part, whole_keyed_change, whole_scatter
from app.cluster.router.sharded_tensors import ShardedResident, without_positions
from app.cluster.shard_map import ShardedVersion
from app.errors import GatherError
from app.services.find_rows import check_keys
from app.store.catalogue.catalogue_rows import RowCounts
from app.store.files.tensor_file import sequence_in
from app.store.idempotency import DRAWN
from app.store.store_errors import not_found
from app.telemetry.served_request import ServedRequest
from app.tensors.scatter_call import KeyedCall, ScatterCall

_ATTEMPTS: Final = 8
"""Maximum number of attempts for a scatter without a key. It is restarted if its version is removed while it is
running.
"""
_NO_SEQUENCE: Final = 1 << 62
"""A sequence that no range has. If it is required, a primary applies nothing and reports only whether it knows the
key.
"""
_UNCONDITIONAL: Final = (ALWAYS, Conditions(match=("*",)))


class ContentGone(Exception):
    """The version for which a scatter was validated no longer exists."""


@dataclass(frozen=True, slots=True)
class _ValidScatter:
    """A scatter that fits `version` of the table `table`. `is_own` says whether this router drew the key."""

    table: str
    version: ShardedVersion
    whole: Part
    call: ScatterCall | KeyedCall
    key: str
    digest: str
    is_own: bool


class ShardedScatters:
    """Run scatters into `tables`; see `ScatterTarget`."""

    def __init__(self, tables: PublishedTensors, asks: PrimaryAsks, threads: DiskThreads) -> None:
        self._tables = tables
        self._asks = asks
        self._threads = threads
        self._tasks: set[asyncio.Task[ScatterOutcome]] = set()
        self._opening: dict[str, asyncio.Task[RangeFailed | None]] = {}
        """Tasks that are opening ranges, by content ID."""

    async def carry_out(self, sent: SentScatter, request: ServedRequest) -> ScatterOutcome:
        """Read, check and run a scatter. Also raises shard_unavailable."""
        call, digest = await self._threads.change(sent.name, sent.read)
        # This runs as a separate task: once some ranges have changed, the others must too, even if the request is
        # canceled.
        task = asyncio.get_running_loop().create_task(self._carry_out(sent, call, digest, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _carry_out(
        self, sent: SentScatter, call: ScatterCall | KeyedCall, digest: str, request: ServedRequest
    ) -> ScatterOutcome:
        for _ in range(_ATTEMPTS):
            one = await self._begin(sent, call, digest)
            try:
                return await self._apply(one, sent.conditions, request)
            except ContentGone:
                if not one.is_own:
                    _refuse_gone(one.version.content_id)
        raise GatherError(
            "overloaded", f"{sent.name!r} was replaced during every attempt to apply this scatter", retry_after=1
        )

    # Choosing the content

    async def _begin(self, sent: SentScatter, call: ScatterCall | KeyedCall, digest: str) -> _ValidScatter:
        """Return the scatter, validated for the version that the name or the key refers to."""
        try:
            found = self._tables.shard_map.find(sent.name)
            if found is None:
                raise not_found(sent.name, self._tables)
            one = await self._validate(*found, sent, call, digest)
        except GatherError:
            # The request may not fit the version that the name refers to now. If its key is already bound, the bound
            # version counts.
            known = await self._tables.binding_of(sent.name, sent.key) if sent.key is not None else None
            if known is None:
                raise
            return await self._validate_bound(known, sent, call, digest)
        if sent.key is None:
            return one
        binding = await self._tables.bind(sent.name, sent.key, one.version.content_id, digest)
        if binding == Binding(one.version.content_id, digest):
            return one
        return await self._validate_bound(binding, sent, call, digest)

    async def _validate_bound(
        self, binding: Binding, sent: SentScatter, call: ScatterCall | KeyedCall, digest: str
    ) -> _ValidScatter:
        """Return the scatter, validated for the version that its key is bound to."""
        if binding.digest != digest:
            raise GatherError(
                "invalid_field",
                "this Idempotency-Key was already used for another request",
                hint="Use a new Idempotency-Key for each request, such as a UUID.",
                pointer="/idempotency-key",
            )
        found = await self._tables.locate(binding.content_id)
        if found is None:
            _refuse_gone(binding.content_id)
        return await self._validate(*found, sent, call, digest)

    async def _validate(
        self, table: str, version: ShardedVersion, sent: SentScatter, call: ScatterCall | KeyedCall, digest: str
    ) -> _ValidScatter:
        def judge() -> Part:
            if isinstance(call, KeyedCall):
                check_keys(call.keys, ShardedResident(self._tables.shard_map, table, version), sent.name, "/name")
                return whole_keyed_change(version, call)
            if version.keys is not None:
                hint = f"Send 'keys' in place of 'indices' to /tensors/{sent.name}/upsert."
                raise without_positions(sent.name, "/indices", hint)
            return whole_scatter(version, call)

        whole = await self._threads.change(sent.name, judge)
        if version.dtype.kind == "string":
            _refuse_strings(sent.name)
        if len(version.ranges) > 1 and sent.conditions not in _UNCONDITIONAL:
            _refuse_conditions(sent.name, len(version.ranges))
        key = f"{DRAWN}{uuid4().hex}" if sent.key is None else f"{sent.name}/{sent.key}"
        return _ValidScatter(table, version, whole, call, key, digest, sent.key is None)

    # Running the scatter

    async def _apply(self, one: _ValidScatter, conditions: Conditions, request: ServedRequest) -> ScatterOutcome:
        """Make all ranges apply their parts. Raises ContentGone."""
        if conditions not in _UNCONDITIONAL:
            return await self._apply_conditionally(one, conditions, request)
        parts = await self._threads.change(one.table, lambda: one.whole.cut(one.version.ranges))
        return await self._outcome(one, await self._apply_parts(one, parts, request))

    async def _apply_conditionally(
        self, one: _ValidScatter, conditions: Conditions, request: ServedRequest
    ) -> ScatterOutcome:
        """Run the scatter if `conditions` hold for the table, which must not have more than one range."""
        version = self._newest(one)
        resident = ShardedResident(self._tables.shard_map, one.table, version)
        if one.whole.is_empty:  # no primary receives a part, so none could check the conditions
            conditions.check(await self._tables.etags.committed_etag(resident, request))
            return await self._outcome(one, [])
        ((etag, _),) = await self._tables.etags.measure([resident], request)
        for _ in range(_ATTEMPTS):
            problem = _problem(conditions, etag)
            if problem is not None and one.is_own and not version.is_open:
                raise problem
            sequence = _NO_SEQUENCE if problem is not None else sequence_in(etag)
            answers = await self._apply_parts(one, [one.whole], request, sequence)
            refusal = next((answer for _, answer in answers if answer.refused), None)
            if refusal is None:
                return await self._outcome(one, answers)
            etag = version.etag_at(refusal.sequence)  # the ETag that was read before may be older
            if problem is not None and (problem := _problem(conditions, etag)) is not None:
                raise problem
        raise GatherError("overloaded", f"{one.table!r} changes repeatedly", retry_after=1)

    async def _apply_parts(
        self, one: _ValidScatter, parts: Sequence[Part], request: ServedRequest, if_sequence: int | None = None
    ) -> list[tuple[str, RangeScattered]]:
        """Make the primaries of all parts apply them. Return their responses, with the names of the parts' tensors.

        If there are errors, raises one of them, preferably one that leaves the outcome unknown.
        """
        asked = [self._apply_part(one, part, request, if_sequence) for part in parts]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            raise _choose_error(errors, len(parts), one)
        return [each for answer in answers if not isinstance(answer, BaseException) for each in answer]

    async def _apply_part(
        self, one: _ValidScatter, part: Part, request: ServedRequest, if_sequence: int | None
    ) -> list[tuple[str, RangeScattered]]:
        """Make a range apply its part, following the range to a new primary if necessary, until the request's deadline.

        If the range has since been split, its new ranges apply the part.
        """
        pauses, failure = self._asks.pauses(request.deadline), RangeFailed("the range has no primary")
        while True:
            version = self._newest(one)
            own = [each for each in version.ranges if part.start <= each.start and each.stop <= part.stop]
            if len(own) > 1:
                if if_sequence is not None:
                    _refuse_conditions(one.table, len(version.ranges))
                return await self._apply_parts(one, part.cut(own), request, if_sequence)
            if len(own) != 1:
                raise ContentGone
            epoch = 0
            if own[0].primary is None:
                failure = await self._wait_until_open(one, version, request.deadline) or failure
            elif own[0].primary.address:
                epoch = own[0].primary.epoch
                order = await self._threads.change(one.table, partial(_order, one, part, epoch, if_sequence))
                answer = await self._asks.ask(own[0], order, request)
                if isinstance(answer, RangeScattered):
                    return [(own[0].tensor, answer)]
                failure = answer
            if not await pauses.wait(partial(self._has_moved, one, part, epoch)):
                raise _unavailable(one, part, failure)

    async def _wait_until_open(
        self, one: _ValidScatter, version: ShardedVersion, deadline: float
    ) -> RangeFailed | None:
        """Open the ranges of a version, or wait for a running attempt, until a deadline. See `_open` for the result."""
        content = version.content_id
        task = self._opening.get(content)
        if task is None:
            task = self._opening[content] = asyncio.get_running_loop().create_task(self._open(one, version))
            task.add_done_callback(partial(self._forget_opening, content))
        done, _ = await asyncio.wait((task,), timeout=max(deadline - perf_counter(), 0.0))
        return task.result() if done else RangeFailed("etcd does not answer")

    def _forget_opening(self, content: str, task: asyncio.Task[RangeFailed | None]) -> None:
        del self._opening[content]
        if not task.cancelled():
            task.exception()  # mark the error as retrieved, because nobody may be waiting for it any longer

    async def _open(self, one: _ValidScatter, version: ShardedVersion) -> RangeFailed | None:
        """Open the ranges of a version. Returns None, or the reason why they could not be opened."""
        try:
            await asyncio.to_thread(self._tables.open_ranges, one.table, version.number)
        except GatherError as problem:
            if problem.code == "tensor_not_found":
                raise ContentGone from None
            return RangeFailed(problem.detail)
        return None

    def _newest(self, one: _ValidScatter) -> ShardedVersion:
        """Return the version from the newest map. Raises ContentGone."""
        found = self._tables.shard_map.find_content(one.version.content_id)
        if found is None:
            raise ContentGone
        return found

    def _has_moved(self, one: _ValidScatter, part: Part, epoch: int) -> bool:
        """Return whether a part's range is gone from the newest map, or its primary is at an epoch other than
        `epoch`.
        """
        found = self._tables.shard_map.find_content(one.version.content_id)
        ranges = () if found is None else found.ranges
        own = next((each for each in ranges if (each.start, each.stop) == (part.start, part.stop)), None)
        return has_new_primary(own, epoch)

    async def _outcome(self, one: _ValidScatter, answers: Sequence[tuple[str, RangeScattered]]) -> ScatterOutcome:
        try:
            version = self._newest(one)
        except ContentGone:  # the scatter was applied, and the version has since been removed
            version = one.version
        resident = ShardedResident(self._tables.shard_map, one.table, version)
        changed = {tensor: answer.sequence for tensor, answer in answers}
        is_repeated = bool(answers) and all(answer.repeated for _, answer in answers)
        ((etag, rows),) = await self._tables.etags.measure([resident], None, changed)
        if not isinstance(one.call, KeyedCall):
            return ScatterOutcome(etag, version.number, is_repeated, len(answers))
        counts = {tensor: answer.counts for tensor, answer in answers if answer.counts is not None}
        told = RowCounts(
            sum(
                counts[each.tensor].rows if each.tensor in counts else known
                for each, known in zip(version.ranges, rows, strict=True)
            ),
            sum(each.inserted for each in counts.values()),
            sum(each.removed for each in counts.values()),
            sum(each.missing for each in counts.values()),
        )
        return ScatterOutcome(etag, version.number, is_repeated, len(answers), told)


def _order(one: _ValidScatter, part: Part, epoch: int, if_sequence: int | None) -> RangeScatter:
    reduction = one.call.reduction
    return part.order(one.version.dtype, reduction, epoch, one.key, one.digest, if_sequence)


def _problem(conditions: Conditions, etag: str) -> GatherError | None:
    """Return the error for conditions that do not hold for this ETag, or None."""
    try:
        conditions.check(etag)
    except GatherError as problem:
        return problem
    return None


def _refuse_gone(content_id: str) -> NoReturn:
    raise GatherError(
        "precondition_failed",
        f"the version this request was sent to (content {content_id}) has been removed",
        hint="Read the tensor, and send the request with a new Idempotency-Key if the change still applies.",
    )


def _refuse_strings(name: str) -> NoReturn:
    raise GatherError(
        "not_implemented",
        f"{name!r} has strings, and tables of strings in row ranges do not accept scatters",
        hint="Publish a new version of the table.",
    )


def _refuse_conditions(name: str, count: int) -> NoReturn:
    raise GatherError(
        "not_implemented",
        f"{name!r} has {count} row ranges, which do not change together, so a scatter to it accepts no ETags",
        hint="Leave out If-Match and If-None-Match.",
    )


def _choose_error(errors: Sequence[BaseException], parts: int, one: _ValidScatter) -> BaseException:
    """Return the error to report for a scatter of several parts.

    Errors that leave the outcome unknown take precedence. Otherwise, the error says how many parts were applied, unless
    none were.
    """
    first = min(errors, key=lambda error: (isinstance(error, GatherError), _error_code(error) != "shard_unavailable"))
    made = parts - len(errors)
    if not made or not isinstance(first, GatherError) or first.code == "shard_unavailable":
        return first
    hint = "Once the cause is fixed, send the request again with the same Idempotency-Key."
    if one.is_own:
        hint = "Read the rows before you send the request again. A request with an Idempotency-Key is safe to repeat."
    detail = f"{first.detail}; {made} of {parts} row ranges were changed"
    return GatherError(first.code, detail, facts=first.facts, hint=hint, retry_after=first.retry_after)


def _error_code(error: BaseException) -> str:
    return error.code if isinstance(error, GatherError) else ""


def _unavailable(one: _ValidScatter, part: Part, failure: RangeFailed) -> GatherError:
    start, stop = _rows_of(one.version, part)
    name = f"{one.table}@{one.version.number}"
    hint = "Send the request again with the same Idempotency-Key."
    if one.is_own:
        hint = "Read the rows to see whether it was made. A request with an Idempotency-Key is safe to repeat."
    return GatherError(
        "shard_unavailable",
        f"rows {start} to {stop - 1} of {name!r} do not accept scatters now ({failure.why}); the outcome of this one "
        "is unknown",
        facts={"ranges": [{"tensor": name, "start": start, "stop": stop}]},
        hint=hint,
        retry_after=1,
    )


def _rows_of(version: ShardedVersion, part: Part) -> tuple[int, int]:
    """Return a part's first row and the row after its last one, for errors.

    For a table with keys, these are the row numbers in the upload.
    """
    bounds = [
        row_bounds
        for one, row_bounds in zip(version.ranges, version.row_bounds, strict=True)
        if part.start <= one.start and one.stop <= part.stop
    ]
    return (bounds[0][0], bounds[-1][1]) if bounds else (part.start, part.stop)
