"""Write the sample sessions in `examples/trajectories/`: a scripted agent at work, as three programs would record it.

Nothing here was recorded from a model. The script is the recording: running it again writes the same bytes, and a test
checks that the committed files are what it writes. They contain what real sessions contain: replies in several records,
parallel calls, a refusal, a sub-agent, a compaction, bulky output, an end that is not a success.

    python examples/make_trajectories.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sample_runs import atif_run, swe_agent_text, swe_agent_tools
from sample_sessions import AGENT, callers_session, interrupted_session, rounding_session

HERE = Path(__file__).parent / "trajectories"


def sample_files() -> dict[str, str]:
    """Path below the folder to content, of every sample."""
    main = rounding_session()
    callers, interrupted = callers_session(main), interrupted_session()
    sub_agent = f"claude-code/{main.session_id}/subagents/agent-{AGENT}"
    described = {"agentType": "Explore", "description": "Check callers"}
    return {
        f"claude-code/{main.session_id}.jsonl": main.text(),
        f"{sub_agent}.jsonl": callers.text(),
        f"{sub_agent}.meta.json": json.dumps(described) + "\n",
        f"claude-code/{interrupted.session_id}.jsonl": interrupted.text(),
        "swe-agent/duration-parser-12.traj": json.dumps(swe_agent_tools(), indent=2) + "\n",
        "swe-agent/slow-importer-3.traj": json.dumps(swe_agent_text(), indent=2) + "\n",
        "atif/export-2.json": json.dumps(atif_run(), indent=2) + "\n",
    }


def main() -> None:
    """Write all samples below the folder named on the command line."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, content in sample_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        print(f"{path}: {len(content.encode())} bytes")


if __name__ == "__main__":
    main()
