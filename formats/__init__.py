"""Importers of other people's trajectory formats: Claude Code sessions, SWE-agent, ATIF."""

from .detect import READERS, detect
from .importing import FileProblem, ImportReport, import_files
from .source import Begin, Entry, Problem, Reader

__all__ = [
    "READERS",
    "Begin",
    "Entry",
    "FileProblem",
    "ImportReport",
    "Problem",
    "Reader",
    "detect",
    "import_files",
]
