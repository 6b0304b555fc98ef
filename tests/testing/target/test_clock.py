"""A call that the clock ends says nothing of the target."""

import pytest

from linkern.testing.errors import OutOfTime, TargetDied
from linkern.testing.target.clock import Clock, Timed
from linkern.testing.target.protocol import Call


class Fake:
    """A target that hangs for as long as it may, or ends its process."""

    opened = interface = None
    timeout = 20.0

    def __init__(self, clock, *, hung):
        self.clock, self.hung, self.asked = clock, hung, []

    def call(self, _call):
        self.asked.append(self.timeout)
        if self.hung:
            self.clock.reset(0.0)
        reason = "did not return" if self.hung else "crashed"
        raise TargetDied(reason, hung=self.hung)


def test_a_hang_that_the_clock_ends_is_no_hang_of_the_target():
    clock = Clock(10.0)
    target = Fake(clock, hung=True)
    with pytest.raises(OutOfTime):
        Timed(target, clock).call(Call({}))
    assert 0 < target.asked[0] <= 10.0


def test_a_crash_is_one_of_the_target():
    target = Fake(Clock(10.0), hung=False)
    with pytest.raises(TargetDied):
        Timed(target, target.clock).call(Call({}))


def test_without_an_end_a_call_has_its_own_time():
    target = Fake(Clock(), hung=False)
    with pytest.raises(TargetDied):
        Timed(target, target.clock).call(Call({}))
    assert target.asked == [20.0]


def test_behind_the_end_nothing_is_called():
    target = Fake(Clock(0.0), hung=False)
    with pytest.raises(OutOfTime):
        Timed(target, target.clock).call(Call({}))
    assert not target.asked
