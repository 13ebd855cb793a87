"""From foreign trajectory files to SQL: import, replicate, consolidate, then three questions to the cold tier.

The same four steps as on the command line, which is what this example calls; the questions are asked from Python.

    python examples/query_cold.py [HOME]     (by default a temporary home)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from stratalog.cold import connect

TRAJECTORIES = Path(__file__).parent / "trajectories"

QUESTIONS = {
    "How much work was it, by model?": """
        SELECT model, count(*) AS trajectories, sum(turns)::BIGINT AS turns, sum(output_tokens)::BIGINT AS tokens
        FROM trajectories GROUP BY model ORDER BY turns DESC, model""",
    "Which tools fail?": """
        SELECT tool, count(*) AS calls, count(*) FILTER (status = 'error') AS errors
        FROM tool_calls GROUP BY tool HAVING errors > 0 ORDER BY errors DESC, tool""",
    "What did people ask for first?": """
        SELECT trajectory_id, substr(text, 1, 60) AS question
        FROM messages WHERE role = 'user' AND text IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY sequence_number) = 1
        ORDER BY trajectory_id""",
}


def stratalog(home: str, *arguments: str) -> None:
    """Run a command of stratalog and show what it says; ends the example where it fails."""
    print("$ stratalog", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "stratalog", *arguments, "--home", home], check=True)


def ask(home: str) -> None:
    """Print the answers; all of them come from one snapshot of the cold tier."""
    with connect(home) as connection:
        for question, query in QUESTIONS.items():
            print(f"\n{question}")
            answer = connection.execute(query)
            print("  " + " | ".join(column[0] for column in answer.description or ()))
            rows = answer.fetchall()
            for row in rows:
                print("  " + " | ".join(str(value).replace("\n", " ") for value in row))
            assert rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = sys.argv[1] if len(sys.argv) > 1 else folder
        stratalog(home, "import", str(TRAJECTORIES))
        stratalog(home, "sidecar", "--once")
        stratalog(home, "consolidate", "--older-than", "0d")
        ask(home)


if __name__ == "__main__":
    main()
