"""The two-slot log loses nothing it acknowledged and invents nothing, whatever a crash leaves; the trials detect a broken log."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import FastompError, MediumError, StoreError
from fastomp_nvm.runs import log as checkpoint
from fastomp_nvm.runs.log import PAGE, StateLog, read_state
from storage_backends.testing.power_cut import Fault, SimulatedPlace, explore
from tests.harness.log_trials import BROKEN_LOGS, BrokenPromiseError, cut_power

pytestmark = pytest.mark.numerics

RUN = bytes(range(16))


@pytest.mark.parametrize("granule", [8, 64])
def test_no_power_cut_loses_or_invents_a_state(granule: int) -> None:
    """Over whole lives of a log, kills and second crashes included, every image recovers to a state it may have."""
    images = sum(cut_power(seed, granule=granule, limit=16) for seed in range(6))
    assert images > 1000


@pytest.mark.slow
@pytest.mark.parametrize("granule", [8, 64, 512, PAGE])
def test_many_power_cuts(granule: int) -> None:
    """The same at every granularity up to a page, on several thousand images each."""
    images, seed = 0, 1000
    while images < 5000:
        images += cut_power(seed, granule=granule, limit=64)
        seed += 1


@pytest.mark.parametrize("fault", BROKEN_LOGS)
def test_a_broken_log_is_caught(fault: str) -> None:
    """Each way of getting the log wrong breaks the promise in some image: the trials can fail."""
    with BROKEN_LOGS[fault](), pytest.raises(BrokenPromiseError):
        sum(cut_power(seed, granule=8 if seed % 2 else 64, limit=16) for seed in range(30))


def test_one_persist_per_state() -> None:
    """Appending persists exactly once, also when the log moves to a larger region."""
    steps: list[str] = []
    place = SimulatedPlace()
    log = StateLog(place, "log", RUN, 4 * PAGE)
    place.before = steps.append
    for number in range(1, 12):
        log.append(b"x" * 100 * number)
        assert steps.count("persist") == number
    assert "create" in steps


def test_writes_are_proportional_to_what_is_new() -> None:
    """A short record costs a page and a slot, however long the log has become."""
    written = 0

    class Counting(SimulatedPlace):
        """Counts the bytes handed to ``write``."""

        def region(self, name, size=0):
            region = super().region(name, size)
            original = region.write

            def write(offset, data):
                nonlocal written
                written += len(data)
                original(offset, data)

            region.write = write
            return region

    log = StateLog(Counting(), "log", RUN)
    log.append(bytes(100 * PAGE))
    written = 0
    log.append(b"short")
    assert written < 2 * PAGE


@given(records=st.lists(st.binary(max_size=3 * PAGE), max_size=8), cuts=st.lists(st.integers(0, 7)))
@settings(max_examples=40)
def test_records_come_back(records: list[bytes], cuts: list[int]) -> None:
    """Whatever was appended is read back, in order, however often the log is opened again in between."""
    place = SimulatedPlace()
    log = StateLog(place, "log", RUN, 3 * PAGE)
    for number, record in enumerate(records):
        if number in cuts:
            log = StateLog(place, "log", RUN, 3 * PAGE)
        log.append(record)
    assert StateLog(place, "log", RUN).records == records
    assert list(read_state(place, "log", RUN).records) == records
    assert len(place.regions()) == 1


def test_two_logs_share_a_place() -> None:
    """Logs of different names do not see each other, even when one name begins like the other."""
    place = SimulatedPlace()
    one, two = StateLog(place, "run", RUN), StateLog(place, "run.1", RUN)
    one.append(b"one")
    two.append(b"two")
    assert (StateLog(place, "run", RUN).records, StateLog(place, "run.1", RUN).records) == ([b"one"], [b"two"])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_every_step_may_fail(code: int) -> None:
    """The Nth step fails, N = 1, 2, ...: a MediumError, no further records are taken, and acknowledged ones are there."""

    def strike(fault: Fault, step: str) -> None:
        with device_errors(step):
            fault.strike()

    for nth in itertools.count(1):
        place, fault = SimulatedPlace(), Fault(nth, code)
        place.before = functools.partial(strike, fault)
        acknowledged = 0
        with contextlib.suppress(MediumError):
            log = StateLog(place, "log", RUN, 4 * PAGE)
            for number in range(6):
                log.append(bytes([number]) * 50)
                acknowledged = number + 1
        if acknowledged and fault.fired and acknowledged < 6:
            with pytest.raises(StoreError, match="failed before"):
                log.append(b"more")
        image = next(place.images(1, random.Random(0)))
        again = StateLog(SimulatedPlace(8, image), "log", RUN, 4 * PAGE)
        assert acknowledged <= again.sequence <= 6
        assert again.records == [bytes([number]) * 50 for number in range(again.sequence)]
        if not fault.fired:
            break
    assert nth > 20


def test_damage_that_no_crash_does_is_told() -> None:
    """Two slots that both fail their checksum are damage, not a crash: an error, not a silent start from nothing."""
    place = SimulatedPlace()
    log = StateLog(place, "log", RUN)
    for record in (b"a", b"b", b"c"):
        log.append(record)
    region = place.region("log.0")
    region.write(checkpoint._BODY + 8, b"rot")
    with pytest.raises(StoreError, match="neither of its two states"):
        StateLog(place, "log", RUN)


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of a later format is refused by its version."""
    place = SimulatedPlace()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 2)
        StateLog(place, "log", RUN).append(b"future")
    with pytest.raises(StoreError, match="format 2 and this release reads 1"):
        StateLog(place, "log", RUN)


@given(where=st.integers(0, 3 * PAGE - 1), flip=st.integers(1, 255))
@settings(max_examples=200)
def test_a_changed_byte_never_makes_another_state(where: int, flip: int) -> None:
    """Any byte of slots or body that changes leaves a state that was written, or raises an error of this project."""
    place, written = SimulatedPlace(), [b"first", b"second"]
    log = StateLog(place, "log", RUN)
    for record in written:
        log.append(record)
    region = place.region("log.0")
    region.write(where, bytes([region.read(where, 1)[0] ^ flip]))
    try:
        records = StateLog(place, "log", RUN).records
    except FastompError:
        return
    assert records in ([], written[:1], written)


def test_the_simulator_enumerates_every_subset() -> None:
    """Three words written and not persisted make eight images; a persisted one is in all of them; a line goes as a whole."""
    for granule, expected in ((8, 8), (64, 4)):
        place = SimulatedPlace(granule)
        region = place.region("r", 128)
        region.write(0, b"\1" * 24)
        assert len(set(map(str, place.images(100, random.Random(0))))) == expected
        region.persist(0, 8 if granule == 8 else 24)
        images = list(place.images(100, random.Random(0)))
        assert len(images) == (4 if granule == 8 else 1)
        assert all(image["r"][:8] == b"\1" * 8 for image in images)


def test_the_simulator_stays_within_its_limit() -> None:
    """Large states are sampled, the extremes among them."""
    place = SimulatedPlace()
    place.region("r", 4096).write(0, b"\1" * 4096)
    images = {image["r"] for image in place.images(50, random.Random(0))}
    assert len(images) == 50
    assert {bytes(4096), b"\1" * 4096} <= images


def test_exploring_counts_its_images() -> None:
    """Every step is preceded by a cut, and the end followed by one."""
    place, seen = SimulatedPlace(), []

    def work(place: SimulatedPlace) -> None:
        region = place.region("r", 8)
        region.write(0, b"x")
        region.persist(0, 1)

    assert explore(place, work, seen.append, 10, 0) == len(seen) == 5
