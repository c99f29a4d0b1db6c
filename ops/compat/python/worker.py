"""The loop of a client that lives through many requests, so that starting the
interpreter and importing the library are paid once.

A request is one line, `operation, broker, topic, codec, count`, separated by
tabs, with count lines `key, value` after it. The answer is any number of lines
`r, key, value` and one last line `ok` or `error` with a text.
"""
import sys
import traceback


class Refused(Exception):
    """The client was told at once that it cannot have what it asked for."""


def records(count):
    for _ in range(count):
        key, value = sys.stdin.readline().rstrip("\n").split("\t", 1)
        yield key.encode(), value.encode()


def answer(kind, *fields):
    text = "\t".join(str(f).replace("\n", " ").replace("\t", " ") for f in fields)
    sys.stdout.write(f"{kind}\t{text}\n")


def serve(operations):
    while line := sys.stdin.readline():
        operation, broker, topic, codec, count = line.rstrip("\n").split("\t")
        given = list(records(int(count)))
        try:
            if operation == "produce":
                text = operations[operation](broker, topic, codec, given)
            elif operation == "consume":
                text = ""
                for key, value in operations[operation](broker, topic):
                    sys.stdout.write(f"r\t{key.decode()}\t{value.decode()}\n")
            elif operation in operations:
                text = operations[operation](broker, topic)
            else:
                raise NotImplementedError(f"{operation} is not written for this client")
            answer("ok", text or "")
        except Exception as error:  # the test prints it
            traceback.print_exc()
            answer("error", f"{type(error).__name__}: {error}")
        sys.stdout.flush()


def expect(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")
