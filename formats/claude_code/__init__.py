"""Claude Code sessions: `~/.claude/projects/<project>/<session>.jsonl` and those of sub-agents beside them."""

from .reader import ClaudeCode

__all__ = ["ClaudeCode"]
