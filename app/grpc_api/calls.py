"""Answers calls: the one place that checks API keys, admits calls, converts errors to statuses, and counts calls.

A handler is called once the metadata has arrived, and reads the message itself. So a call that has no valid key or
exceeds the limit is refused before its message is read. For this, the calls are registered with gRPC as streams, which
are the same on the wire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from time import perf_counter
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import grpc.aio

from app.api.request_body import inflate, too_large
from app.dispatch.admission_control import SMALL_BODY_BYTES, Admission
from app.dispatch.request_thread_pool import ClientGone
from app.errors import CATALOGUE, GatherError
from app.formats.grpc.infer_answer import error_head, write_stream_error
from app.grpc_api.calls_under_way import MOST_PUBLIC_BYTES, MOST_SECONDS, CallsUnderWay
from app.grpc_api.error_trailers import PROBLEM, problem_bytes, status_message
from app.grpc_api.health_and_model_calls import LONG, CallHandler, read_message, serving_status, write_message
from app.grpc_api.infer import RpcInference
from app.grpc_api.rpc_request import RpcRequest
from app.grpc_api.rpc_table import NOT_OFFERED, RPCS, SERVICE, UNKNOWN, Rpc
from app.grpc_api.unsent_answers import UnsentAnswers
from app.memory.error_tracebacks import drop_tracebacks, forget_failure
from app.security.authorizer import Authorizer
from app.server.readiness import Readiness
from app.server.start_request import run_rest
from app.telemetry.request_metrics import Metrics

logger = logging.getLogger("gathernd")

_WATCH_S: Final = 0.2
"""Seconds between two status checks for a health watch."""
_INFLATED_AT_ONCE: Final = 1 << 10
"""Compressed messages with more bytes are decompressed in a thread."""
_GONE: Final = "client_gone"
"""The code in the metrics for a call that the caller has ended."""
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Result = TypeVar("Result")


class Calls(grpc.GenericRpcHandler):
    """Answers all calls: infer calls through `inference`, and the others through the handlers of their methods."""

    def __init__(
        self,
        inference: RpcInference,
        handlers: Mapping[str, CallHandler],
        *,
        authorizer: Authorizer | None,
        readiness: Readiness,
        metrics: Metrics,
        admission: Admission,
        deadline: float,
        under_way: CallsUnderWay,
        max_message_bytes: int,
        unsent: UnsentAnswers,
    ) -> None:
        self._inference = inference
        self._call_handlers = handlers
        self._authorizer = authorizer
        self._readiness = readiness
        self._metrics = metrics
        self._admission = admission
        self._deadline = deadline
        self._under_way = under_way
        self._max_message_bytes = max_message_bytes
        self.unsent = unsent
        self._stopping = asyncio.Event()
        others = {"ModelStreamInfer": self._stream_handler, "Watch": self._watch_handler}
        self._handlers: dict[str, Any] = {
            path: others.get(rpc.method, self._unary_handler)(rpc) for path, rpc in RPCS.items()
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method or, for an unknown method, a handler that refuses the call."""
        return self._handlers.get(details.method) or self._refusing_handler(details.method)

    async def wait_until_idle(self, seconds: float) -> None:
        """Wait up to `seconds` until no calls are in flight."""
        await self._under_way.wait_until_idle(seconds)

    def end_idle_streams(self) -> None:
        """End the streams that are waiting for a request.

        A stream that is answering one ends when the response is complete.
        """
        self._stopping.set()
        self._under_way.cancel_idle_streams()

    def _refusing_handler(self, path: str) -> Any:
        offered, _, method = path.rpartition("/")
        if offered == f"/{SERVICE}" and method in NOT_OFFERED:
            error = GatherError("not_implemented", f"{method} is not available here")
        else:
            error = GatherError(
                "not_found", f"unknown call {path[:200]!a}", hint="Call a method of the inference protocol."
            )

        async def refuse(_: object, context: Context) -> bytes:
            request = self._request(UNKNOWN, context)
            self._metrics.begin()
            failure = error
            try:
                self._check_access(request)
            except GatherError as refusal:
                failure = refusal
            await self._end_with(failure, request, context)
            raise AssertionError("a call that was refused goes on")

        return grpc.stream_unary_rpc_method_handler(refuse)

    def _request(self, rpc: Rpc, context: Context) -> RpcRequest:
        metadata: Any = context.invocation_metadata() or ()
        request = RpcRequest(rpc, metadata, context.peer, self._admission.budget, self._deadline)
        left: float | None = context.time_remaining()
        if left is not None:
            request.wait_at_most(max(left, 0.0))
        return request

    def _check_access(self, request: RpcRequest) -> None:
        if request.repeated_key:
            raise GatherError(
                "malformed_request",
                "the metadata authorization occurs more than once",
                hint="Send the metadata authorization once.",
            )
        if self._authorizer is not None:
            self._authorizer.check("POST", request.rpc.access, request.credential)

    def _check_call(self, request: RpcRequest, running: int) -> None:
        """Check a call before its message is read. Raises unauthorized, forbidden, not_ready and overloaded."""
        self._check_access(request)
        if request.rpc.is_infer:
            if self._readiness.waiting_for:
                raise self._readiness.error()
            if running - len(self._under_way.public) > self._admission.requests:
                raise self._admission.too_many()

    async def _inflate(self, message: bytes, coding: bytes, request: RpcRequest, most: int) -> bytes:
        """Decompress a message. Raises malformed_request, and payload_too_large if the result exceeds `most` bytes."""

        def inflated() -> bytes:
            whole = inflate(message, coding, most, request.memory, name="message_bytes")
            request.memory.charge(len(whole))
            return bytes(whole)

        if len(message) <= _INFLATED_AT_ONCE:
            return inflated()
        return await self._run(self._admission.pool.run(inflated, request), request)

    async def _read_public(self, context: Context, request: RpcRequest, task: asyncio.Task[Any]) -> bytes:
        """Read the only message of a call that needs no key. Raises overloaded, and any error of `_read`."""
        await self._under_way.take_public_place(task)
        message = await self._read(context, request, min(MOST_SECONDS, self._deadline), MOST_PUBLIC_BYTES)
        self._under_way.has_public_message(task)
        return message

    async def _read(self, context: Context, request: RpcRequest, seconds: float, most: int) -> bytes:
        """Read the only message of a call, and charge it to the budget.

        Raises malformed_request, request_timeout if the message does not arrive within `seconds`, and payload_too_large
        if it has more than `most` bytes.
        """
        try:
            async with asyncio.timeout(seconds):
                message: Any = await context.read()
        except TimeoutError:
            raise GatherError("request_timeout", f"the message did not come within {seconds:g} s") from None
        if message is grpc.aio.EOF:
            raise GatherError("malformed_request", "the call ended without a message")
        request.received = size = len(message)
        if size > most:
            raise too_large(most, "message_bytes")
        return await self._accept_message(message, request, most)

    async def _accept_message(self, message: bytes, request: RpcRequest, most: int) -> bytes:
        """Charge a received message, and decompress it. May raise any error of charging and of `_inflate`."""
        request.memory.charge(len(message))
        request.admitted = len(message) > SMALL_BODY_BYTES
        coding = coding_of(message)
        return message if coding is None else await self._inflate(message, coding, request, most)

    def _unary_handler(self, rpc: Rpc) -> Any:
        handler = self._call_handlers.get(rpc.method)

        async def handle(_: object, context: Context) -> bytes:
            request = self._request(rpc, context)
            running = self._metrics.begin()
            task = self._under_way.begin(rpc)

            def leave() -> None:
                self._under_way.end(task)
                if not request.disconnected:
                    request.memory.release()

            try:
                self._check_call(request, running)
                if rpc.is_public:
                    message = await self._read_public(context, request, task)
                else:
                    await self._under_way.take_place(task)
                    message = await self._read(context, request, self._deadline, self._max_message_bytes)
                if handler is None:
                    work = self._inference.infer(message, request)
                else:
                    work = _answer(handler, message, request)
                written = await self._run(work, request)
            except (Exception, asyncio.CancelledError) as error:
                try:
                    await self._end_with(error, request, context)
                finally:
                    leave()  # not earlier: until then, gRPC may hold a part of the message
                raise
            request.sent = len(written)
            if rpc.is_public:  # the response has only a few bytes
                leave()
            else:
                self.unsent.add(context, task, leave)
            self._count(request, None)
            if request.given_id is not None:  # only on request: varying trailers take as long as a small gather
                timing = request.server_timing().decode()
                context.set_trailing_metadata((("x-request-id", request.request_id), ("server-timing", timing)))
            return written

        return grpc.stream_unary_rpc_method_handler(handle)

    async def _run(self, work: Coroutine[Any, Any, Result], request: RpcRequest) -> Result:
        """Run `work` directly up to its first wait, and run it to its end even if the caller goes away.

        Work in a thread cannot be interrupted, and continues to charge memory. The charge is released when it ends.
        """
        try:
            awaited = work.send(None)
        except StopIteration as done:
            found: Result = done.value
            return found
        task = asyncio.ensure_future(run_rest(work, awaited))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            request.leave()
            task.add_done_callback(lambda ended: _release(request, ended))
            raise

    def _error(self, error: BaseException, request: RpcRequest) -> GatherError:
        """Return the catalogue's error for an exception. Logs unexpected exceptions."""
        if isinstance(error, GatherError):
            return error
        logger.error("a request failed", exc_info=error, extra={"fields": {"request_id": request.request_id}})
        return GatherError("internal", "the service failed; its log has the request_id")

    def _code_of_cancelled(self, request: RpcRequest) -> str:
        """Return the error code for a call that was canceled or whose deadline has passed."""
        if request.callers_deadline and perf_counter() >= request.deadline - 0.001:
            return "deadline_exceeded"
        return "not_ready" if self._stopping.is_set() else _GONE

    def _stream_handler(self, rpc: Rpc) -> Any:
        """Return the handler of a stream. It answers requests in order; an invalid request does not end the stream."""

        async def handle(_: object, context: Context) -> None:
            call = self._request(rpc, context)
            task = self._under_way.begin(rpc)
            try:
                self._check_call(call, 0)
                await self._under_way.take_place(task)
                while await self._answer_next(rpc, context):
                    pass
                if self._stopping.is_set():
                    raise GatherError("not_ready", "the service is stopping", retry_after=1)
            except GatherError as error:
                self._metrics.begin()
                await self._end_with(error, call, context)
                raise
            finally:
                self._under_way.end(task)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _answer_next(self, rpc: Rpc, context: Context) -> bool:
        """Answer the next request of a stream. Returns False at the end of the stream.

        Raises unauthorized and forbidden.
        """
        if self._stopping.is_set():
            return False
        task = asyncio.current_task()
        assert task is not None
        self._under_way.wait_for_request(task)
        try:
            message: Any = await context.read()
        except asyncio.CancelledError:
            preempted = self._under_way.preemption_error()
            if preempted is not None:
                raise preempted from None
            if not self._stopping.is_set():
                raise
            task.uncancel()
            return False
        finally:
            self._under_way.has_request(task)
        if message is grpc.aio.EOF:
            return False
        request = self._request(rpc, context)
        request.received = len(message)
        running = self._metrics.begin()
        code: str | None = None
        try:
            self._check_access(request)
            try:
                if running > self._admission.requests:
                    raise self._admission.too_many()
                message = await self._accept_message(message, request, self._max_message_bytes)
                written = await self._run(self._inference.infer(message, request, stream=True), request)
            except ClientGone:
                raise
            except Exception as error:  # noqa: BLE001  (`_error` logs it)
                failure = self._error(error, request)
                code = failure.code
                drop_tracebacks(error)
                written = await self._stream_error(failure, message, request)
            request.sent = len(written)
            await self.unsent.wait(context, context.write(written))
        except GatherError as error:
            code = error.code
            raise
        except (ClientGone, asyncio.CancelledError):
            code = self._code_of_cancelled(request)
            raise
        finally:
            if not request.disconnected:
                request.memory.release()
            self._count(request, code)
        return True

    async def _stream_error(self, error: GatherError, message: bytes, request: RpcRequest) -> bytes:
        try:
            parsed = await self._run(self._inference.parse(message, request), request)
            model, identifier = parsed.model, parsed.split.identifier
        except GatherError:
            model = identifier = ""
        problem = problem_bytes(error, request.request_id).decode()
        return write_stream_error(error.detail, error_head(model, identifier, problem))

    def _watch_handler(self, rpc: Rpc) -> Any:
        async def handle(_: object, context: Context) -> None:
            request = self._request(rpc, context)
            request.callers_deadline = False  # here the caller's deadline limits the watch
            task = self._under_way.begin(rpc)
            try:
                service = read_message(rpc, await self._read_public(context, request, task)).service
                self._under_way.watch(task)
                await self._send_statuses(rpc, service, context)
            except (GatherError, asyncio.CancelledError) as error:
                self._metrics.begin()
                await self._end_with(error, request, context)
                raise
            else:
                self._metrics.begin()  # only now, because a watch does not count as a request in flight
                self._count(request, None)
            finally:
                self._under_way.end(task)
                request.memory.release()

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _send_statuses(self, rpc: Rpc, service: str, context: Context) -> None:
        """Send the status of a service, and then each change of that status, until the server stops."""
        last = -1
        while True:
            now = serving_status(service, self._readiness)
            if now != last:
                last = now
                await self.unsent.wait(context, context.write(write_message(rpc, {"status": now})))
            if self._stopping.is_set():
                break
            await asyncio.sleep(_WATCH_S)

    async def _end_with(self, error: BaseException, request: RpcRequest, context: Context) -> None:
        """Count a call that ends with `error`, and send the error. gRPC then raises its own exception.

        Returns only if the caller is gone.
        """
        if isinstance(error, ClientGone | asyncio.CancelledError):
            failure = self._under_way.preemption_error()
        else:
            failure = self._error(error, request)
        drop_tracebacks(error)
        self._count(request, self._code_of_cancelled(request) if failure is None else failure.code)
        if failure is not None:
            await self._abort(context, failure, request)

    def _count(self, request: RpcRequest, code: str | None) -> None:
        row = CATALOGUE.get(code)  # type: ignore[call-overload]  # None if there is no error, and for `_GONE`
        status = "OK" if code is None else "CANCELLED" if row is None else row.grpc_status
        self._metrics.counters.add(f"gathernd_grpc_requests|{request.rpc.method}|{status}")
        request.status = 200 if code is None else 0 if row is None else row.status
        self._metrics.count(request, code)

    async def _abort(self, context: Context, error: GatherError, request: RpcRequest) -> None:
        self._metrics.count_limit(error)
        metadata = (
            ("x-request-id", request.request_id),
            ("server-timing", request.server_timing().decode()),
            (PROBLEM, problem_bytes(error, request.request_id)),
        )
        aborted = context.abort(grpc.StatusCode[CATALOGUE[error.code].grpc_status], status_message(error), metadata)
        await self.unsent.wait(context, aborted)


async def _answer(handler: CallHandler, message: bytes, request: RpcRequest) -> bytes:
    """Return the response to a call other than infer."""
    content = await handler(read_message(request.rpc, message), request.memory)
    if request.rpc.method in LONG:
        return await asyncio.to_thread(write_message, request.rpc, content)
    return write_message(request.rpc, content)


def coding_of(message: bytes) -> bytes | None:
    """Detect the compression of a message from its first bytes: gzip, deflate (zlib), or None.

    An uncompressed message cannot begin with these bytes: gzip's first byte would be wire type 7, which does not exist,
    and zlib's would be field 15, which no message has.
    """
    first = message[:1]
    if first == b"\x1f":
        return b"gzip" if message[1:2] == b"\x8b" else None
    return b"deflate" if first == b"x" and len(message) > 1 and (message[0] << 8 | message[1]) % 31 == 0 else None


def _release(request: RpcRequest, ended: asyncio.Task[Any]) -> None:
    """Release the charge of a request whose caller left before its work ended."""
    forget_failure(ended)
    request.memory.release()
