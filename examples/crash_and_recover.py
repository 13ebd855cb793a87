"""A worker is killed with SIGKILL in the middle of its work; the next one learns from the log what may have happened.

The parent kills its child while tools run. Whatever the child was told is durable must be there again. The fold of the
events then says which actions are in doubt: their intent is on disk and their result is not. These must be settled
(by idempotency key, by a probe, or by a person) and must not simply be called again.

    python examples/crash_and_recover.py [HOME]     (by default a temporary home)
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import uuid

from stratalog.hot import HotLog
from stratalog.schemas.events import IntentSettled, ToolIntent, ToolResult
from stratalog.schemas.record import TrajectoryRecord, fold

ACKNOWLEDGED_MIN = 25


def work_until_killed(home: str) -> None:
    """The child: says on stdout what is durable, after it is."""
    with HotLog.open(home) as log:
        trajectory = log.start_blocking(tenant="default", task="pay the invoices")
        print("trajectory", trajectory, log.log_id, flush=True)
        number = 0
        while True:
            call = f"payment-{number}"
            intent = log.append_blocking(
                trajectory,
                ToolIntent(tool_call_id=call, tool="pay", idempotency_key=call, effect="irreversible"),
            )
            print("durable", intent.sequence_number, intent.hash.hex(), flush=True)
            time.sleep(0.02)  # the payment; most of the time this is where the kill finds us
            result = ToolResult(tool_call_id=call, intent=intent.sequence_number, output="paid")
            receipt = log.append_blocking(trajectory, result)
            print("durable", receipt.sequence_number, receipt.hash.hex(), flush=True)
            number += 1


def kill_a_worker(home: str) -> tuple[uuid.UUID, uuid.UUID, dict[int, str]]:
    """Start a child and kill it; returns its trajectory, its log, and the hashes of what it said was durable."""
    command = [sys.executable, __file__, "--child", home]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        _, trajectory, log_id = child.stdout.readline().split()
        said: dict[int, str] = {}
        for line in child.stdout:
            _, sequence_number, digest = line.split()
            said[int(sequence_number)] = digest
            if len(said) == ACKNOWLEDGED_MIN:
                child.kill()  # what it says until it is gone is still read
    assert child.returncode == -signal.SIGKILL
    return uuid.UUID(trajectory), uuid.UUID(log_id), said


def recover(home: str, trajectory: uuid.UUID, log_id: uuid.UUID, said: dict[int, str]) -> None:
    """Open the dead worker's log, check it against what the worker said, settle what is in doubt."""
    with HotLog.open(home, log_id=log_id) as log:
        events = list(log.read(trajectory))
        found = {event.header.sequence_number: event.hash.hex() for event in events}
        lost = [number for number, digest in said.items() if found.get(number) != digest]
        print(f"acknowledged before the kill: {len(said)}, lost: {len(lost)}, in the log: {len(events)}")
        assert not lost

        record = fold(TrajectoryRecord(), events)
        print(f"status {record.status}, payments begun {record.spent.tool_calls}, in doubt {len(record.open_intents)}")
        for intent in list(record.open_intents.values()):
            print(f"  event {intent.sequence_number}: {intent.tool}, idempotency key {intent.idempotency_key}")
            # A real worker asks the payment service about this key; the answer is an event like any other.
            settled = IntentSettled(
                intent=intent.sequence_number, tool_call_id=intent.tool_call_id, method="probe", outcome="happened"
            )
            log.append_blocking(trajectory, settled)
        record = fold(TrajectoryRecord(), log.read(trajectory))
        print(f"after settling: in doubt {len(record.open_intents)}, anomalies {record.anomaly_count}")
        assert not record.open_intents


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        work_until_killed(sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        home = sys.argv[1] if len(sys.argv) > 1 else folder
        recover(home, *kill_a_worker(home))


if __name__ == "__main__":
    main()
