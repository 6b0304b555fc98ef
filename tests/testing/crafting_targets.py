"""Targets that find the pipe to the referee, and write to it."""

import os
import pickle
import stat
import struct
import sys
import threading

import numpy as np

from linkern.testing.target.protocol import Raised, Reply
from linkern.testing.target.wire import packed
from tests.testing.targets import good

MARKER = "CODE_RAN_IN_THE_REFEREE"
PREFIX = struct.Struct("<4s16sIQ")


class Payload:
    """What a pickle of it does where it is read."""

    def __reduce__(self):
        return os.mkdir, (os.environ[MARKER],)


def pipes():
    """Yield the pipes of this process that can be written to."""
    for descriptor in range(3, 256):
        try:
            mode = os.fstat(descriptor).st_mode
            os.write(descriptor, b"")
        except OSError:
            continue
        if stat.S_ISFIFO(mode):
            yield descriptor


def send(data):
    for descriptor in pipes():
        os.write(descriptor, data)


def ticket():
    """Return the ticket of the request, from the frame of the worker."""
    frame = sys._getframe()
    while "prefix" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["prefix"].ticket


def message(reply):
    return b"".join(bytes(part) for part in packed(reply, ticket()))


def reply(output, shape=None):
    shape = shape or output.shape
    return Reply(output, "float32", "numpy.ndarray", shape, shape)


def writes_a_pickle(query, key, value):
    send(pickle.dumps(Payload()))
    return good(query, key, value)


def writes_a_pickle_in_a_message(query, key, value):
    header = pickle.dumps(Payload())
    send(PREFIX.pack(b"LKN1", ticket(), len(header), 0) + header)
    return good(query, key, value)


def answers_itself(query, key, value):
    output = good(query, key, value)
    send(message(reply(output)))
    return output


def answers_twice(query, key, value):
    output = good(query, key, value)
    send(2 * message(reply(output)))
    return output


def answers_before_it_is_asked(query, key, value):
    send(PREFIX.pack(b"LKN1", bytes(16), 0, 0))
    return good(query, key, value)


def answers_later(query, key, value):
    output = good(query, key, value)
    late = message(reply(output))
    threading.Timer(0.2, send, [late]).start()
    return output


def announces_a_header(query, key, value):
    send(PREFIX.pack(b"LKN1", ticket(), 2**32 - 1, 0))
    return good(query, key, value)


def announces_an_exabyte(query, key, value):
    send(PREFIX.pack(b"LKN1", ticket(), 2, 2**60) + b"[]")
    return good(query, key, value)


def answers_the_wrong_kind(query, key, value):
    data = b'["Judgement",[]]'
    send(PREFIX.pack(b"LKN1", ticket(), len(data), 0) + data)
    return good(query, key, value)


def nests(query, key, value):
    data = b"[" * 200_000
    send(PREFIX.pack(b"LKN1", ticket(), len(data), 0) + data)
    return good(query, key, value)


def answers_another_call(query, key, value):
    send(message(reply(np.zeros((1, 1, 7, 3), np.float32))))
    os._exit(0)


def answers_with_another_output(query, key, value):
    send(message(reply(np.zeros((1, 1, 1, 1), np.float32), value.shape)))
    os._exit(0)


def answers_with_integers(query, key, value):
    send(message(reply(value.astype(int))))
    os._exit(0)


def raises_control_characters(query, key, value):
    send(message(Raised("\x1b[2J\ud800")))
    os._exit(0)


def closes_the_pipe(query, key, value):
    for descriptor in pipes():
        os.close(descriptor)
    return good(query, key, value)


def forks_and_both_answer(query, key, value):
    parent = os.getpid()
    os.fork()
    os.getpid = lambda: parent
    return good(query, key, value)


def writes_half_a_message_and_hangs(query, key, value):
    send(PREFIX.pack(b"LKN1", ticket(), 100, 0) + b"[")
    threading.Event().wait()
