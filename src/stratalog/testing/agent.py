"""The generated agent: from the task over its turns to the end, or to wherever a running one stands."""

from __future__ import annotations

import hashlib
import uuid
from typing import Literal

from stratalog.schemas.events import (
    Annotation,
    Budget,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    Compacted,
    DriftResolved,
    HarnessInput,
    LabelsSet,
    LateResult,
    MessageReceived,
    Model,
    ModelReplied,
    Part,
    PlanStep,
    PlanUpdated,
    PromptTemplate,
    RetrievedItem,
    TaskFinished,
    TaskStarted,
    ToolCall,
    ToolResult,
    TrajectoryForked,
    TrajectoryReopened,
    raw_json,
)

from . import calls, words
from .calls import PlannedCall
from .script import Script
from .tool import DELEGATE, SCHEMAS, TOOLS, WEIGHTS, Tool

CHECKPOINT_EVERY_TURNS = 5
PROMPT_VERSION = "engineer-14"


Status = Literal["completed", "failed", "cancelled"]


class Agent:
    """Writes the script of one trajectory."""

    def __init__(self, script: Script, model: tuple[str, str, str, float, float]) -> None:
        self.script = script
        self.phrases = script.phrases
        self.model = model
        self.served_version = model[1]
        self._compact_above = 24 + self.phrases.below(72)
        self.task = ""
        self._sent_bytes = 0
        self._huge_at = 0
        self._last_checkpoint_turn = 0

    def start(self, parent: uuid.UUID | None = None, parent_sequence: int | None = None) -> None:
        """TaskStarted, and the messages that open the conversation."""
        phrases, (name, version, provider, _, _) = self.phrases, self.model
        repository, team = phrases.one(words.REPOSITORIES), phrases.one(words.TEAMS)
        self.task = phrases.filled(phrases.one(words.TASKS))
        workspace = hashlib.sha256(repository.encode()).hexdigest()[:24]
        self.script.add(
            TaskStarted(
                task=self.task,
                specification=raw_json({"repository": repository, "acceptance": ["tests pass", "reviewed"]}),
                agent="engineer",
                agent_version="2.8.1",
                model=Model(name=name, version=version, provider=provider),
                sampling=raw_json({"temperature": 0.2, "top_p": 0.95, "max_tokens": 8192, "seed": phrases.below(999)}),
                prompt_template=PromptTemplate(name="engineer", version=PROMPT_VERSION),
                tool_schemas=SCHEMAS,
                workspace_snapshot=f"workspace-{workspace}",
                budget=Budget(tokens=self.script.tokens_left, cost_usd=25.0, turns=500, seconds=86_400.0),
                labels={"team": team, "repository": repository},
                parent="" if parent is None else str(parent),
                parent_sequence=parent_sequence,
            )
        )
        self.script.add(HarnessInput(source="clock", name="utc", value=raw_json(self.script.now)))
        self._say("system", words.SYSTEM.format(team=team, repository=repository), author="harness")
        self._say("user", self.task, author=phrases.one(words.PEOPLE))

    def fork(self, parent: uuid.UUID, parent_sequence: int) -> None:
        """Say of which trajectory this one is a branch."""
        change = raw_json({"prompt_template": {"old": PROMPT_VERSION, "new": "engineer-15"}})
        self.script.add(
            TrajectoryForked(
                parent=str(parent), parent_sequence=parent_sequence, change=change, reason="counterfactual"
            )
        )

    def _say(self, role: str, text: str, *, author: str = "", injected: bool = False, picture: bool = False) -> None:
        parts = [Part(text=text)]
        if picture:
            url = f"artifact://dashboards/{self.phrases.random.getrandbits(32):08x}.png"
            parts.append(Part(type="image", media_type="image/png", data=raw_json({"url": url})))
        number = self.script.add(MessageReceived(role=role, parts=tuple(parts), author=author, injected=injected), 2)
        for index, part in enumerate(parts):
            self.script.context.say(number, index, role, str(part.text or ""))

    def work(self) -> None:
        """A number of turns, as the profile has it."""
        profile = self.script.profile
        drawn = int(profile.turns_median * self.phrases.random.lognormvariate(0.0, 0.7))
        turns = min(max(drawn, profile.turns_min), profile.turns_max)
        self._huge_at = self.phrases.below(turns) + 1 if profile.huge else 0
        while self.script.turn < turns or self.script.next_number < profile.events_min or self._huge_at:
            self.turn()

    def turn(self) -> None:
        """Context, reply, and the calls it proposed."""
        script, phrases = self.script, self.phrases
        self._surroundings()
        proposed = self._proposals()
        self._reply(phrases.thought(), tuple(planned.call for planned in proposed))
        going = [planned for planned in proposed if calls.authorize(script, planned)]
        for planned in going:
            calls.dispatch(script, planned)
        if len(going) > 1:
            phrases.random.shuffle(going)
        for planned in going:
            if script.turn == self._huge_at:
                self._huge_at = 0
                calls.finish_hugely(script, planned)
            else:
                calls.finish(script, planned)
        if self._huge_at == script.turn:
            self._huge_at += 1  # nothing went out in this turn
        if script.turn - self._last_checkpoint_turn >= CHECKPOINT_EVERY_TURNS:
            self._last_checkpoint_turn = script.turn
            calls.checkpoint(script, "interval")

    def _proposals(self) -> list[PlannedCall]:
        count = 1 if self.phrases.chance(0.85) else 2 + self.phrases.below(2)
        return [self._planned(tool) for tool in self.phrases.random.choices(TOOLS, WEIGHTS, k=count)]

    def _planned(self, tool: Tool) -> PlannedCall:
        identity = f"call_{self.phrases.random.getrandbits(64):016x}"
        arguments = raw_json(tool.arguments(self.phrases))
        return PlannedCall(ToolCall(tool_call_id=identity, tool=tool.name, arguments=arguments), tool)

    def _surroundings(self) -> None:
        """What happens between turns now and then."""
        script, drawn = self.script, self.phrases.draw()
        if script.turn == 0 or drawn < 0.06:
            self._plan()
        elif drawn < 0.10:
            value = raw_json([self.phrases.one(words.FILES) for _ in range(3)])
            script.add(HarnessInput(source="listing", name=self.phrases.one(words.FOLDERS), value=value))
        elif drawn < 0.13:
            text = self.phrases.one(words.REMARKS)
            self._say("user", text, author=self.phrases.one(words.PEOPLE), picture=text.endswith(":"))
        elif drawn < 0.16:
            self._say("system", self.phrases.one(words.REMARKS), injected=True)
        elif drawn < 0.175:
            self._drift()
        elif drawn < 0.19:
            script.add(LabelsSet(labels={"stage": self.phrases.one(("triage", "fix", "verify"))}))
        if len(script.context.references) > self._compact_above:
            self._compact()

    def _plan(self) -> None:
        done = self.phrases.below(len(words.STEPS))
        steps = tuple(
            PlanStep(title=title, status="done" if index < done else "doing" if index == done else "open")
            for index, title in enumerate(words.STEPS)
        )
        self.script.add(PlanUpdated(steps=steps, text=f"Step {done + 1} of {len(steps)}."))

    def _drift(self) -> None:
        new = f"{self.model[1]}-r{self.phrases.below(9) + 1}"
        crossed = self.phrases.chance(0.4)
        if crossed:
            self.served_version = new
        self.script.add(
            DriftResolved(
                component="model",
                decision="cross_over" if crossed else "pin",
                name=self.model[0],
                old=self.model[1],
                new=new,
                from_turn=self.script.turn + 1,
                reason="the provider serves another revision",
            )
        )

    def _compact(self) -> None:
        script, phrases = self.script, self.phrases
        calls.checkpoint(script, "compaction")
        summary = f"Task: {self.task} " + " ".join(phrases.filled(phrases.one(words.MIDDLES)) for _ in range(6))
        references = script.context.references
        number = script.add(
            Compacted(
                summary=summary,
                first_turn=1,
                last_turn=script.turn,
                first_sequence=references[2][0],
                last_sequence=references[-7][0],
                trigger="context_size",
                tokens_before=script.context.bytes // 4,
            ),
            6,
        )
        script.context.compact(2, 6, number, summary)

    def build_context(self) -> None:
        """The ContextBuilt event of the next turn."""
        script, phrases = self.script, self.phrases
        retrieved: tuple[RetrievedItem, ...] = ()
        if phrases.chance(0.05):
            text = phrases.source_code(4)
            digest = hashlib.sha256(text.encode()).hexdigest()
            retrieved = (
                RetrievedItem(source="code-index", item_id=phrases.one(words.FILES), sha256=digest, text=text),
            )
        script.turn += 1
        script.add(script.context.built(script.next_number, retrieved), 0.01)

    def _reply(self, text: str, proposed: tuple[ToolCall, ...]) -> None:
        script, (name, _, _, input_price, output_price) = self.script, self.model
        self.build_context()
        cached, self._sent_bytes = self._sent_bytes // 4, script.context.bytes
        read = script.context.bytes // 4
        written = (len(text) + sum(len(bytes(call.arguments)) for call in proposed)) // 4 + 20
        cost = round(read * input_price / 1e6 + written * output_price / 1e6, 6)
        number = script.add(
            ModelReplied(
                text=text,
                tool_calls=proposed,
                stop_reason="tool_use" if proposed else "end_turn",
                input_tokens=read,
                output_tokens=written,
                cache_read_tokens=min(cached, read),
                cost_usd=cost,
                served_model=name,
                served_version=self.served_version,
                reply_id=f"reply_{self.phrases.random.getrandbits(64):016x}",
                duration_ms=round(400 + written * 12.5, 1),
            ),
            0.4 + written / 80,
        )
        script.context.say(number, 0, "assistant", text)
        script.tokens_left -= read + written
        script.cost_usd += cost

    def delegate(self) -> tuple[PlannedCall, int]:
        """Propose and dispatch a call that a child works on; returns it and the number that ChildStarted will have."""
        planned = self._planned(DELEGATE)
        self._reply(self.phrases.thought(), (planned.call,))
        self.script.add(calls.allowed(self.script, planned))
        calls.dispatch(self.script, planned)
        return planned, self.script.next_number

    def child_started(self, planned: PlannedCall, child: uuid.UUID, task: str) -> None:
        """The child runs."""
        self.script.add(ChildStarted(child=str(child), tool_call_id=planned.id, task=task))

    def child_finished(self, planned: PlannedCall, child: Script, status: str, result: str) -> None:
        """The child has ended, and its result is the tool's."""
        script = self.script
        script.now = max(script.now, child.now)
        script.add(ChildFinished(child=str(child.trajectory_id), status=status, tool_call_id=planned.id), 0.05)
        body = ToolResult(tool_call_id=planned.id, intent=planned.intent, tool="delegate", output=result)
        calls.answer(script, body, 0.01)

    def end(self) -> tuple[str, str]:
        """The end and what may follow it; returns status and result."""
        drawn = self.phrases.draw()
        if drawn < 0.08:
            status, result = "cancelled", ""
            self._cancel()
        elif drawn < 0.2:
            status, result = "failed", self.phrases.filled(self.phrases.one(words.FAILURES))
            self._finish("failed", result)
        else:
            status, result = "completed", self._complete()
            if drawn > 0.98:
                self.script.add(TrajectoryReopened(reason="the review asked for a change"), 3600)
                self.turn()
                result = self._complete()
        self._afterwards()
        return status, result

    def _complete(self) -> str:
        result = self.phrases.filled(self.phrases.one(words.RESULTS))
        self._reply(result, ())
        self._finish("completed", result)
        return result

    def _finish(self, status: Status, result: str) -> None:
        completed = status == "completed"
        self.script.add(
            TaskFinished(
                status=status,
                result=result if completed else "",
                reason="" if completed else result or "cancelled by a person",
                exit_status="0" if completed else "1",
                reward=1.0 if completed else 0.0,
            )
        )

    def _cancel(self) -> None:
        """Cancelled while a call is out: its result comes late or never."""
        planned = self._planned(TOOLS[3])
        self._reply(self.phrases.thought(), (planned.call,))
        self.script.add(calls.allowed(self.script, planned))
        calls.dispatch(self.script, planned)
        self.script.add(CancelRequested(requester=self.phrases.one(words.PEOPLE), reason="no longer needed"), 3)
        self._finish("cancelled", "")
        if self.phrases.chance(0.6):
            late = LateResult(tool_call_id=planned.id, intent=planned.intent, output=self.phrases.test_run(8))
            self.script.add(late, 30)

    def _afterwards(self) -> None:
        if not self.phrases.chance(0.3):
            return
        score = round(self.phrases.draw(), 2)
        self.script.add(
            Annotation(
                name="reviewer_score", score=score, author=self.phrases.one(words.PEOPLE), note="nightly review"
            ),
            1800,
        )

    def stand_still(self) -> None:
        """Stop without an end, in one of the states in which a running trajectory can be."""
        state = self.phrases.below(4)
        if state == 0:
            return  # between two turns
        if state == 1:
            self.build_context()
            return
        planned = self._planned(TOOLS[-2])
        self._reply(self.phrases.thought(), (planned.call,))
        if state == 2:
            calls.request_approval(self.script, planned)
        else:
            self.script.add(calls.allowed(self.script, planned))
            calls.dispatch(self.script, planned)
