"""The life of a hot log: opening, closing, forks, several processes, several logs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_hot import GatedStore, log_on, note

from stratalog.hot import engine as engine_module
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent
from stratalog.schemas.errors import (
    HomeMissing,
    Invalid,
    Locked,
    NotFound,
)

LARGE = 3 << 20


USES: list[Callable[[HotLog], Any]] = [
    lambda log: log.start_blocking(tenant="t"),
    lambda log: log.append_blocking(uuid.uuid4(), note("x")),
    lambda log: list(log.scan()),
    lambda log: log.get(1),
    lambda log: log.heads(),
    lambda log: log.note(b"x"),
    lambda log: log.prune(),
    lambda log: log.durable_lsn,
    lambda log: log.acknowledge(1, b""),
]


def test_a_log_that_is_not_open_refuses_everything(home: Home) -> None:
    log = HotLog.open(home)
    for use in USES:
        with pytest.raises(Invalid, match="not open"):
            use(log)
    with log:
        with pytest.raises(Invalid, match="already open"):
            log.__enter__()
        log.start_blocking(tenant="t")
        engine = log.engine
    log.close()
    for use in USES:
        with pytest.raises(Invalid, match="not open"):
            use(log)
    for call in (lambda: list(engine.scan()), engine.prune, lambda: engine.acknowledge(1, b"")):
        with pytest.raises(Invalid, match="closed"):
            call()
    engine.close()
    with log:  # and opened again
        assert log.durable_lsn == 1


def test_a_scan_that_was_not_finished_does_not_keep_the_log(home: Home) -> None:
    with HotLog.open(home) as log:
        trajectory_id = log.start_blocking(tenant="t")
        log.append_many_blocking(trajectory_id, [NewEvent(note(str(number))) for number in range(600)])
        scan, read = log.scan(), log.read(trajectory_id)
        next(scan), next(read)
        log_id = log.log_id
    with HotLog.open(home, log_id=log_id) as log:
        assert log.durable_lsn == 601
    with pytest.raises(Invalid, match="closed"):
        list(scan)
    with pytest.raises(Invalid, match="closed"):
        list(read)


def test_closing_commits_what_is_staged(gated: GatedStore) -> None:
    log = log_on(gated).__enter__()
    trajectory_id = log.start_blocking(tenant="t")
    gated.gate.clear()
    receipts: list[int] = []
    threads = [
        threading.Thread(target=lambda: receipts.append(log.append_blocking(trajectory_id, note("x")).lsn))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    gated.waiting.acquire()
    while log.engine.stager.last.lsn < 6:
        pass
    closer = threading.Thread(target=log.close)
    closer.start()
    gated.gate.set()
    for thread in (*threads, closer):
        thread.join()
    assert sorted(receipts) == [2, 3, 4, 5, 6]


def test_many_who_close_and_prune_at_once(home: Home) -> None:
    for _ in range(5):
        with HotLog.open(home, serve=False) as log:
            trajectory_id = log.start_blocking(tenant="t")
            receipt = log.append_blocking(trajectory_id, note("x"))
            log.acknowledge(receipt.lsn, receipt.hash)
            engine = log.engine
            outcomes: list[str] = []

            def call(action: Callable[[], Any], outcomes: list[str] = outcomes) -> None:
                try:
                    action()
                    outcomes.append("done")
                except Invalid as error:
                    outcomes.append(error.message)

            actions = [engine.prune, engine.close, engine.prune, engine.close, log.engine.durable.close]
            threads = [threading.Thread(target=call, args=(action,)) for action in actions]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(outcomes) == 5


async def test_an_opening_that_is_cancelled_leaves_nothing_open(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, go_on = threading.Event(), threading.Event()
    slow = engine_module.recover

    def recover(*arguments: Any) -> Any:
        opening.set()
        go_on.wait()
        return slow(*arguments)

    monkeypatch.setattr(engine_module, "recover", recover)
    log = HotLog.open(home)
    task = asyncio.create_task(log.__aenter__())
    await asyncio.to_thread(opening.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    log_id = home.log_ids()[0]
    while True:
        try:
            with HotLog.open(home, log_id=log_id):
                break
        except Locked:
            await asyncio.sleep(0.01)


def in_child(action: Callable[[], Any]) -> Any:
    """The outcome of an action in a forked child."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            sender.send(action())
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            sender.send(type(error).__name__)
        os._exit(0)
    try:
        assert receiver.poll(30), "the child hangs"
        return receiver.recv()
    finally:
        os.waitpid(pid, 0)


def test_a_forked_child_must_not_use_the_log_and_does_not_disturb_it(home: Home) -> None:
    with HotLog.open(home) as log:
        trajectory_id = log.start_blocking(tenant="t")
        for use in USES:
            assert in_child(lambda use=use: use(log)) == "Invalid"  # type: ignore[misc]
        assert in_child(log.close) is None
        log.append_blocking(trajectory_id, note("x"))

        def own() -> None:
            with HotLog.open(home.path) as other:
                other.start_blocking(tenant="t")

        assert in_child(own) == "Invalid"  # RocksDB would hang there
        log_id = log.log_id
        receiver, sender = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(receiver, 1)
            os._exit(0)
    # The child still lives; it keeps neither the log nor its socket.
    with HotLog.open(home, log_id=log_id) as log:
        assert log.durable_lsn == 2
    os.write(sender, b"x")
    os.waitpid(pid, 0)
    os.close(receiver)
    os.close(sender)


def test_each_process_takes_a_log_of_its_own_and_of_its_role(home: Home) -> None:
    with HotLog.open(home) as first, HotLog.open(home) as second, HotLog.open(home, role="import") as imports:
        assert len({first.log_id, second.log_id, imports.log_id}) == 3
        with pytest.raises(Locked):
            HotLog.open(home, log_id=first.log_id).__enter__()
        ids_of = [first.log_id, imports.log_id]
    with HotLog.open(home) as first, HotLog.open(home, role="import") as imports:
        assert [first.log_id, imports.log_id] == ids_of
    assert len(home.log_ids()) == 3
    with pytest.raises(NotFound):
        HotLog.open(home, log_id=uuid.uuid4()).__enter__()
    with pytest.raises(HomeMissing):
        HotLog.open(home.path / "none", create=False).__enter__()


OPENER = """
import sys
from stratalog.hot import HotLog
with HotLog.open(sys.argv[1]) as log:
    log.start_blocking(tenant="t")
    print(log.log_id, flush=True)
    sys.stdin.read()  # nobody closes before all are open
"""


def test_processes_that_open_at_once_get_different_logs(tmp_path: Path) -> None:
    path = tmp_path / "home"  # made by whoever comes first
    command = [sys.executable, "-c", OPENER, str(path)]
    openers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    found = [opener.stdout.readline() for opener in openers if opener.stdout]
    outcomes = [(opener.communicate(), opener.returncode) for opener in openers]
    assert [code for _, code in outcomes] == [0] * 4
    assert len(set(found)) == 4
    assert not list((path / "hot").glob(".new-*"))


def test_a_draft_of_a_killed_process_is_removed(home: Home) -> None:
    (home.path / "hot" / f".new-{uuid.uuid4()}" / "db").mkdir(parents=True)
    with HotLog.open(home):
        assert [path.name for path in (home.path / "hot").iterdir()] == [str(home.log_ids()[0])]
