"""A gRPC server (`serve ADDRESS`), and a client (`call ADDRESS AUTHORITY`) that checks each kind of call."""

import sys
import threading
from concurrent import futures

import grpc

# Generous: the machine may be busy.
LIMIT = 120
cancelled = threading.Semaphore(0)


def unary(request, context):
    context.set_trailing_metadata((("served-for", dict(context.invocation_metadata())["caller"]),))
    return request[::-1]


def count(requests, _context):
    return str(sum(len(request) for request in requests)).encode()


def many(request, _context):
    for number in range(int(request)):
        yield b"%d" % number


def echo(requests, _context):
    yield from requests


def fail(_request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: ä")


def never(_request, context):
    ended = threading.Event()
    context.add_callback(ended.set)
    ended.wait()
    cancelled.release()
    return b""


def was_cancelled(_request, _context):
    return b"yes" if cancelled.acquire(timeout=LIMIT) else b"no"


def serve(address):
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Count": grpc.stream_unary_rpc_method_handler(count),
        "Many": grpc.unary_stream_rpc_method_handler(many),
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Never": grpc.unary_unary_rpc_method_handler(never),
        "WasCancelled": grpc.unary_unary_rpc_method_handler(was_cancelled),
    }
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.All", methods),))
    assert server.add_insecure_port(address)
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


def error_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("no error")


def call(address, authority):
    channel = grpc.insecure_channel(address, options=[("grpc.default_authority", authority)])
    method = lambda kind, name: getattr(channel, kind)(f"/test.All/{name}")

    response, about = method("unary_unary", "Unary").with_call(
        b"abc", metadata=(("caller", "one"),), timeout=LIMIT
    )
    assert response == b"cba" and about.code() == grpc.StatusCode.OK
    assert dict(about.trailing_metadata())["served-for"] == "one"

    # Below the default of max-body-size.
    large = b"xy" * 500_000
    metadata = (("caller", "one"),)
    assert method("unary_unary", "Unary")(large, metadata=metadata, timeout=LIMIT) == large[::-1]

    parts = [b"x" * 1000] * 100
    assert method("stream_unary", "Count")(iter(parts), timeout=LIMIT) == b"100000"
    numbers = list(method("unary_stream", "Many")(b"500", timeout=LIMIT))
    assert numbers == [b"%d" % number for number in range(500)]

    # Each message is sent only after the reply to the one before: nothing may wait in a buffer.
    replied = threading.Semaphore(1)

    def messages():
        for number in range(50):
            assert replied.acquire(timeout=LIMIT)
            yield b"%d" % number

    seen = 0
    for reply in method("stream_stream", "Echo")(messages(), timeout=LIMIT):
        assert reply == b"%d" % seen
        seen += 1
        replied.release()
    assert seen == 50

    error = error_of(lambda: method("unary_unary", "Fail")(b"", timeout=LIMIT))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing: ä")

    # The client gives up, and the server learns of it.
    error = error_of(lambda: method("unary_unary", "Never")(b"", timeout=0.3))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert method("unary_unary", "WasCancelled")(b"", timeout=LIMIT) == b"yes"
    print("done")


{"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
