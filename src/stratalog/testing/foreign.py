"""Generated files in the formats that can be imported: of any size, in the shape of real ones, the same for one seed.

A session of `turns` turns is a prompt, then for each turn a reply with a tool call and the call's result. Sizes of the
outputs are drawn; `bulky` and `huge` name the turns whose output has more than 32 KiB and more than 1 MiB.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from . import words
from .phrases import Phrases

Json = dict[str, Any]
START = dt.datetime(2026, 3, 2, 8, 0, tzinfo=dt.UTC)
MODEL = "claude-sonnet-4-5-20250929"
OUTPUT_LINES_MAX = 40
BULKY_LINES = 700
HUGE_LINES = 18_000
BULKY_EVERY = 29


class _Turns:
    """What is said and done, turn by turn; the formats only write it down."""

    def __init__(self, seed: str, bulky: Container[int], huge: Container[int]) -> None:
        source = random.Random(seed)
        self.phrases = Phrases(source)
        self.id = str(uuid.UUID(bytes=source.randbytes(16), version=4))
        self._now = START + dt.timedelta(hours=source.random() * 24 * 20)
        self._bulky, self._huge = bulky, huge

    def stamp(self) -> str:
        """The time, a little later at every call."""
        self._now += dt.timedelta(milliseconds=200 + self.phrases.below(9_000))
        return self._now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def output(self, turn: int) -> str:
        """What the tool of this turn returns."""
        lines = HUGE_LINES if turn in self._huge else BULKY_LINES if turn in self._bulky else 0
        return self.phrases.service_log(lines or self.phrases.below(OUTPUT_LINES_MAX) + 1)

    def command(self) -> str:
        """A shell command."""
        return f"pytest -q {self.phrases.one(words.FOLDERS)} -k {self.phrases.one(words.FUNCTIONS)}"


def claude_code_session(
    seed: str, turns: int, *, bulky: Container[int] = (), huge: Container[int] = ()
) -> Iterator[str]:
    """The lines of a Claude Code session."""
    script = _Turns(seed, bulky, huge)
    parent: str | None = None

    def record(kind: str, **members: Any) -> str:
        nonlocal parent
        own = str(uuid.UUID(bytes=script.phrases.random.randbytes(16), version=4))
        common = {"parentUuid": parent, "isSidechain": False, "cwd": "/srv/app", "sessionId": script.id}
        parent = own
        line = {**common, "version": "2.1.40", "type": kind, **members, "uuid": own, "timestamp": script.stamp()}
        return json.dumps(line, separators=(",", ":")) + "\n"

    yield record("user", message={"role": "user", "content": script.phrases.thought()})
    for turn in range(turns):
        call = f"toolu_{turn:06d}"
        use = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": script.command()}}
        usage = {"input_tokens": 4, "cache_read_input_tokens": 900 + turn * 40, "output_tokens": 180}
        reply = {"id": f"msg_{script.id[:8]}_{turn}", "type": "message", "role": "assistant", "model": MODEL}
        for block in ({"type": "text", "text": script.phrases.thought()}, use):
            yield record("assistant", message={**reply, "content": [block], "usage": usage})
        output = script.output(turn)
        result = {"type": "tool_result", "tool_use_id": call, "content": output}
        yield record("user", message={"role": "user", "content": [result]}, toolUseResult={"stdout": output})


def swe_agent_run(seed: str, turns: int, *, bulky: Container[int] = (), huge: Container[int] = ()) -> Json:
    """A SWE-agent trajectory with function calling."""
    script = _Turns(seed, bulky, huge)
    steps: list[Json] = []
    history: list[Json] = [
        {"role": "system", "content": "SETTING: You work in a terminal.", "agent": "main"},
        {"role": "user", "content": f"ISSUE {script.id}:\n{script.phrases.thought()}", "agent": "main"},
    ]
    for turn in range(turns):
        said, action, output = script.phrases.thought(), script.command(), script.output(turn)
        shared = {"action": action, "thought": said}
        steps.append({**shared, "observation": output, "response": said, "execution_time": 0.2, "state": {}})
        function = {"name": "bash", "arguments": json.dumps({"command": action})}
        called = [{"id": f"call_{turn}", "type": "function", "function": function}]
        history.append({**shared, "role": "assistant", "content": said, "tool_calls": called, "agent": "main"})
        heard = {"role": "tool", "content": output, "tool_call_ids": [f"call_{turn}"], "agent": "main"}
        history.append(heard)
    info = {"exit_status": "submitted", "submission": script.phrases.patch(6)}
    return {"environment": "main", "trajectory": steps, "history": history, "info": info}


def atif_document(seed: str, turns: int, *, bulky: Container[int] = (), huge: Container[int] = ()) -> Json:
    """An ATIF document."""
    script = _Turns(seed, bulky, huge)
    steps: list[Json] = [
        {"step_id": 1, "timestamp": script.stamp(), "source": "user", "message": script.phrases.thought()}
    ]
    for turn in range(turns):
        call = {"tool_call_id": f"c{turn}", "function_name": "bash", "arguments": {"command": script.command()}}
        step: Json = {"step_id": turn + 2, "timestamp": script.stamp(), "source": "agent"}
        step |= {"message": script.phrases.thought(), "tool_calls": [call]}
        step["observation"] = {"results": [{"source_call_id": f"c{turn}", "content": script.output(turn)}]}
        step["metrics"] = {"prompt_tokens": 800 + turn * 40, "completion_tokens": 60, "cost_usd": 0.0011}
        steps.append(step)
    agent = {"name": "checker", "version": "1.2.0", "model_name": "gpt-4.1"}
    return {"schema_version": "ATIF-v1.7", "session_id": script.id, "agent": agent, "steps": steps}


def write_foreign_files(folder: Path, seed: int, n: int, turns: int) -> list[Path]:
    """Write `n` files of `turns` turns each into `folder`, the formats by turns; every file has bulky output, the first
    of each format one of over 1 MiB.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    bulky = range(BULKY_EVERY // 2, turns, BULKY_EVERY)
    for number in range(n):
        name, huge = f"{seed}-{number}", (turns // 2,) if number < 3 else ()
        if number % 3 == 0:
            path = folder / f"session-{number:03d}.jsonl"
            with path.open("w", encoding="utf-8") as file:
                file.writelines(claude_code_session(name, turns, bulky=bulky, huge=huge))
        else:
            write, suffix = (swe_agent_run, "traj") if number % 3 == 1 else (atif_document, "json")
            path = folder / f"run-{number:03d}.{suffix}"
            path.write_text(json.dumps(write(name, turns, bulky=bulky, huge=huge)), encoding="utf-8")
        written.append(path)
    return written
