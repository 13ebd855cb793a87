"""Which reader a file is for, judged by its content; anything else is refused with what it seems to be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stratalog.schemas.errors import Invalid

from . import scan
from .atif import Atif
from .claude_code import ClaudeCode
from .head import Head, describe_keys
from .native import string
from .source import Reader
from .swe_agent import SweAgent

READERS: dict[str, Reader] = {reader.name: reader for reader in (Atif(), SweAgent(), ClaudeCode())}
"""The readers by format name, in the order in which they are asked."""

AUTO = "auto"
_HINT = f"known formats: {', '.join(sorted(READERS))}"

_MAGIC = {
    b"PK\x03\x04": "a zip archive (an Inspect .eval log?)",
    b"SQLite format 3\x00": "an SQLite database",
    b"\x1f\x8b": "gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd; unpack it first",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}

# The keys that give another format away; the first whose keys are all there is named.
_OTHERS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"responses_create_params"}), "NeMo Gym rollouts"),
    (frozenset({"timestamp", "type", "payload"}), "a Codex CLI rollout"),
    (frozenset({"info", "messages", "trajectory_format"}), "a mini-swe-agent trajectory"),
    (frozenset({"resourceSpans"}), "OpenTelemetry traces"),
    (frozenset({"resourceLogs"}), "OpenTelemetry logs"),
    (frozenset({"$schemaVersion"}), "an OpenAI Agents run state"),
    (frozenset({"eval", "version", "status"}), "an Inspect log"),
    (frozenset({"sessionId", "projectHash"}), "a Gemini CLI session"),
    (frozenset({"trace", "observations"}), "a Langfuse trace"),
    (frozenset({"systemPayload", "uuid"}), "a Qwen Code session"),
    (frozenset({"display", "pastedContents"}), "the prompt history of Claude Code, not a session"),
    (frozenset({"role", "content"}), "chat messages"),
)


def check_regular(path: Path) -> None:
    """Raise `Invalid` for what is no file with something in it (a pipe would be waited for, forever)."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise Invalid("no such file", hint="check the path") from error
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot be read: {_reason(error)}", hint="check its permissions") from error
    if stat.S_ISDIR(status.st_mode):
        raise Invalid("a folder, not a file", hint="give it to the import, which takes every file in it")
    if not stat.S_ISREG(status.st_mode):
        raise Invalid("not a regular file", hint="copy what it delivers into a file first")
    if status.st_size == 0:
        raise Invalid("empty file", hint="nothing was lost: there is nothing in it")


def detect(path: Path, format_name: str = AUTO) -> Reader:
    """The reader for a file; with a name other than `auto` that one, whatever the file contains.

    Raises `Invalid` with a reason for everything that none of them reads.
    """
    if format_name != AUTO and format_name not in READERS:
        raise Invalid(f"{format_name!r} is not a format", hint=_HINT)
    check_regular(path)
    try:
        head = Head(path)
        if not head.text.strip(b" \t\r\n\x00"):
            raise Invalid("nothing but blank space", hint="nothing was lost: there is nothing in it")
        if format_name != AUTO:
            return READERS[format_name]
        for reader in READERS.values():
            if reader.sniff(head):
                return reader
    except OSError as error:
        raise Invalid(f"cannot be read: {_reason(error)}", hint="check its permissions") from error
    raise Invalid(f"no format that can be imported: {describe(head)}", hint=_HINT)


def describe(head: Head) -> str:
    """What a file seems to be."""
    for magic, name in _MAGIC.items():
        if head.start.startswith(magic):
            return name
    if head.binary:
        return "binary"
    names = [set(record) for record in head.records[:8]] if head.by_lines else [set(head.keys)]
    for marks, name in _OTHERS:
        if any(marks <= found for found in names):
            return name
    if head.text.startswith(b"{"):
        return _describe_object(head)
    if head.text.startswith(b"["):
        first = next(iter(scan.elements(head.text[: 1 << 18])), b"")
        keys = list(scan.members(first)) if first.startswith(b"{") else []
        return f"a JSON array of objects with the keys {describe_keys(keys)}" if keys else "a JSON array"
    return "neither a JSON object nor lines of them"


def _describe_object(head: Head) -> str:
    first = head.records[0] if head.by_lines else None
    keys = list(first if first is not None else head.keys)
    kind = string(first.get("type")) if first is not None else None
    told = f'of type "{kind[:40]}" ' if kind else ""
    if not keys:
        return "an empty or damaged JSON object"
    return f"a JSON object {told}with the keys {describe_keys(keys)}"


def _reason(error: OSError | ValueError) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
