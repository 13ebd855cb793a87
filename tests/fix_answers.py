"""The answers to the questions of docs/sql.md in the order of the page, worked out from the events without any SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from fix_facts import (
    Rounded,
    Rows,
    all_calls,
    calls,
    ends,
    error_of,
    finished_us,
    grouped,
    in_order,
    message,
    moment,
    outside,
    plain,
    prompts,
    quantile,
    ratio,
    replies,
    reward,
    said,
    status,
    told,
    total,
)
from fix_questions import Tale, Told

Tales = Sequence[Tale]
DOWN = -1
"""Column 0 downwards; `DOWN - n` is column n."""


def fit_for_training(tales: Tales) -> Rows:
    def fit(tale: Tale) -> bool:
        whole = not any(event.erased for event in tale.events)
        settled = not any(call.status in ("in_doubt", "erased") for call in calls(tale))
        return status(tale) == "completed" and 1 <= len(replies(tale)) <= 40 and whole and settled

    rows = [[str(tale.id), tale.model, len(replies(tale)), len(tale.events)] for tale in tales if fit(tale)]
    return in_order(rows, 0)


def same_first_message(tales: Tales) -> Rows:
    first = [(tale, asked[0]) for tale in tales if (asked := prompts(tale))]
    same = grouped((message(event) or outside(event), str(tale.id)) for tale, event in first)
    return in_order(
        [[text[:60], len(ids), min(ids)] for text, ids in same.items() if text is not None and len(ids) > 1],
        DOWN - 1,
        2,
    )


def prompts_before_failures(tales: Tales) -> Rows:
    last = [(tale, asked[-1]) for tale in tales if status(tale) == "failed" and (asked := prompts(tale))]
    return in_order([[str(t.id), t.model, e.number, (message(e) or "")[:200] or None] for t, e in last], 0)


def rewards(tales: Tales) -> Rows:
    by_model = grouped((tale.model, reward(found[-1])) for tale in tales if (found := ends(tale)))
    rows = []
    for model, values in by_model.items():
        known = [value for value in values if value is not None]
        rows.append([model, len(values), len(known), sum(known) / len(known) if known else None])
    return _rounded(in_order(rows, DOWN - 3, 0), 3, 4)


def _rounded(rows: Rows, column: int, places: int) -> Rows:
    for row in rows:
        row[column] = None if row[column] is None else Rounded(row[column], places)
    return rows


def scores(tales: Tales) -> Rows:
    given = [(tale, event) for tale, event in told(tales, "Annotation") if event.body.score is not None]
    groups = grouped(((event.body.name, status(tale)), event.body.score) for tale, event in given)
    rows = [[*key, len(all_), Rounded(sum(all_) / len(all_), 4), min(all_), max(all_)] for key, all_ in groups.items()]
    return in_order(rows, 0, 1)


def messages_by_role(tales: Tales) -> Rows:
    groups = grouped(pair for tale in tales for pair in _messages(tale))
    rows = []
    for role, found in groups.items():
        lengths = [len(text) for text, _ in found if text is not None]
        away = sum(text is None and blob is not None for text, blob in found)
        rows.append([role, len(found), away, sum(lengths), max(lengths, default=None)])
    return in_order(rows, DOWN - 1, 0)


def _messages(tale: Tale) -> Iterator[tuple[str | None, tuple[str | None, str | None]]]:
    fields = {
        "ModelReplied": ("assistant", "text"),
        "ToolResult": ("tool", "output"),
        "Compacted": ("summary", "summary"),
    }
    for event in tale.events:
        if event.kind == "MessageReceived":
            hidden = event.erased
            yield (None, (None, None)) if hidden else (event.body.role, (message(event), outside(event)))
        elif event.kind in fields:
            role, field = fields[event.kind]
            text = None if event.erased else plain(getattr(event.body, field))
            yield role, (text, None if event.erased else outside(event))


def success_by_model(tales: Tales) -> Rows:
    rows = []
    for model, found in grouped((tale.model, status(tale)) for tale in tales).items():
        ended = [found.count(state) for state in ("completed", "failed", "cancelled")]
        rows.append([model, len(found), *ended, ratio(ended[0], ended[0] + ended[1])])
    return in_order(rows, DOWN - 1, 0)


def reliability(tales: Tales) -> Rows:
    rows = []
    for tool, found in grouped((call.tool, call.status) for call in all_calls(tales)).items():
        count = Counter(found)
        answered = len(found) - count["denied"] - count["in_doubt"] - count["erased"]
        each = [count[state] for state in ("ok", "error", "timeout", "denied", "in_doubt")]
        rows.append([tool, len(found), *each, ratio(count["ok"], answered)])
    return in_order(rows, DOWN - 1, 0)


def retries(tales: Tales) -> Rows:
    kept = [call for call in all_calls(tales) if call.arguments is not None and call.status not in ("denied", "erased")]
    lines = grouped(((call.tale.id, call.tool, call.arguments), call.status) for call in kept)
    again = grouped(
        (tool, after) for (_, tool, _), states in lines.items() for before, after in pairwise(states) if before != "ok"
    )
    return in_order([[tool, len(found), found.count("ok")] for tool, found in again.items()], DOWN - 1, 0)


def costs(tales: Tales) -> Rows:
    rows = []
    for model, all_ in grouped((tale.model, tale) for tale in tales).items():
        done = [tale for tale in all_ if status(tale) == "completed"]
        means: list[Any] = [
            ratio(sum(total(tale, name) for tale in done), len(done), places)
            for name, places in (("input_tokens", 1), ("output_tokens", 1), ("cost_usd", 6))
        ]
        rows.append([model, len(done), *means, ratio(sum(total(tale, "cost_usd") for tale in all_), len(done), 6)])
    return in_order(rows, DOWN - 1, 0)


def longest_calls(tales: Tales) -> Rows:
    timed = [call for call in all_calls(tales) if call.duration_ms is not None]
    rows = [[str(call.tale.id), call.number, call.tool, call.status, call.duration_ms] for call in timed]
    return in_order(rows, DOWN - 4, 0, 1)[:20]


def days(tales: Tales) -> Rows:
    ended = [(tale, at) for tale in tales if (at := finished_us(tale)) is not None and not tale.undated]
    rows = []
    for date, found in grouped((tale.date.isoformat(), (tale, at)) for tale, at in ended).items():
        turns = [len(replies(tale)) for tale, _ in found]
        seconds = [(at - tale.events[0].at_us) / 1e6 for tale, at in found]
        quantiles = [quantile(values, share, 2) for values in (turns, seconds) for share in (0.5, 0.95)]
        rows.append([date, len(found), *quantiles])
    return in_order(rows, 0)


def cached(tales: Tales) -> Rows:
    rows = []
    by_model = grouped((tale.model, event) for tale in tales for event in replies(tale))
    for model, found in by_model.items():
        known = [e.body for e in found if not e.erased and e.body.cache_read_tokens is not None]
        read, sent = sum(body.cache_read_tokens for body in known), sum(body.input_tokens for body in known)
        rows.append([model, len(found), len(known), *((sent, read) if known else (None, None)), ratio(read, sent)])
    return in_order(rows, DOWN - 1, 0)


def errors(tales: Tales) -> Rows:
    failed = [(t, e) for t, e in told(tales, "ToolResult") if e.body.status in ("error", "timeout")]
    rows = []
    for (tool, error), found in grouped(((e.body.tool or None, error_of(e)), (t, e)) for t, e in failed).items():
        trajectories = len({tale.id for tale, _ in found})
        rows.append([tool, error, len(found), trajectories, moment(max(event.at_us for _, event in found))])
    return in_order(rows, DOWN - 2, 0, 1)[:50]


def speed(tales: Tales) -> Rows:
    timed = [
        (tale, event.body)
        for tale, event in told(tales, "ModelReplied")
        if (event.body.duration_ms or 0) > 0 and event.body.output_tokens is not None
    ]
    rows = []
    for model, found in grouped((body.served_model or tale.model, body) for tale, body in timed).items():
        times = [body.duration_ms for body in found]
        rate = ratio(sum(body.output_tokens for body in found), sum(times) / 1000, 2)
        rows.append([model, len(found), quantile(times, 0.5, 1), quantile(times, 0.95, 1), rate])
    return in_order(rows, DOWN - 1, 0)


def sub_agents(tales: Tales) -> Rows:
    by_id = {str(tale.id): tale for tale in tales}
    rows = []
    for tale, event in told(tales, "ChildStarted"):
        child = by_id.get(event.body.child)
        fate = (
            [None] * 3 if child is None else [status(child), len(replies(child)), Rounded(total(child, "cost_usd"), 9)]
        )
        task = plain(event.body.task)
        rows.append([str(tale.id), event.number, event.body.child, task and task[:80], *fate])
    return in_order(rows, 0, 1)


def denials(tales: Tales) -> Rows:
    def key(event: Told) -> tuple[Any, ...]:
        body = event.body
        if event.kind == "Authorized":
            return body.tool or None, "policy", body.policy_version or None, body.reason or None
        by = "nobody in time" if body.decision == "expired" else "person"
        return body.tool or None, by, body.approver or None, body.reason or None

    refused = [(t, e) for t, e in told(tales, "Authorized") if e.body.decision == "deny"]
    refused += [(t, e) for t, e in told(tales, "ApprovalResolved") if e.body.decision in ("denied", "expired")]
    groups = grouped((key(event), tale.id) for tale, event in refused)
    return in_order([[*names, len(ids), len(set(ids))] for names, ids in groups.items()], DOWN - 4, 0, 1, 2, 3)


def approvals(tales: Tales) -> Rows:
    waits: list[tuple[Any, float | None]] = []
    for tale in tales:
        before: dict[str, Told] = {}
        for event in said(tale, "ApprovalRequested", "ApprovalResolved"):
            body = event.body
            if event.kind == "ApprovalResolved":
                asked = before.get(body.tool_call_id)
                wait = (event.at_us - asked.at_us) / 1e6 if asked and asked.kind == "ApprovalRequested" else None
                waits.append(((body.approver or None, body.tool or None, body.decision), wait))
            before[body.tool_call_id] = event
    rows = []
    for names, found in grouped(waits).items():
        known = [wait for wait in found if wait is not None]
        rows.append([*names, len(found), ratio(sum(known), len(known), 2)])
    return in_order(rows, DOWN - 3, 0, 1, 2)


def effects(tales: Tales) -> Rows:
    intents = {(tale.id, event.number): event.body for tale, event in told(tales, "ToolIntent")}
    groups = grouped(
        ((call.tool, intents[call.tale.id, call.number].effect or "not stated"), call.status)
        for call in all_calls(tales)
        if (call.tale.id, call.number) in intents
    )
    unclear = ("in_doubt", "timeout", "unknown")
    rows = [[*key, len(s), s.count("ok"), sum(s.count(state) for state in unclear)] for key, s in groups.items()]
    return in_order(rows, DOWN - 2, 0, 1)


def unapproved(tales: Tales) -> Rows:
    rows = []
    for tale in tales:
        approved = set()
        for event in said(tale, "ApprovalResolved", "ToolIntent"):
            if event.kind == "ApprovalResolved" and event.body.decision == "approved":
                approved.add(event.body.tool_call_id)
                continue
            needed = event.kind == "ToolIntent" and event.body.effect == "irreversible"
            if needed and event.body.tool_call_id not in approved:
                rows.append([str(tale.id), event.number, tale.tenant, event.body.tool, moment(event.at_us)])
    return in_order(rows, 0, 1)


def in_doubt(tales: Tales) -> Rows:
    settled = {(tale.id, event.body.intent): event.body for tale, event in told(tales, "IntentSettled")}
    rows = []
    for call in all_calls(tales):
        if call.status in ("in_doubt", "timeout", "unknown"):
            found = settled.get((call.tale.id, call.number))
            how = [None, None] if found is None else [found.method, found.outcome]
            rows.append([str(call.tale.id), call.number, call.tool, call.status, *how])
    return [row for row in rows if row[5] is None] + in_order([row for row in rows if row[5] is not None], 5, 0, 1)


def erased(tales: Tales) -> Rows:
    groups = grouped(((t.tenant, t.date.isoformat()), (t.id, event.erased)) for t in tales for event in t.events)
    rows = []
    for key, found in groups.items():
        hidden = [id_ for id_, gone in found if gone]
        if hidden:
            rows.append([*key, len(hidden), len(set(hidden)), len(found)])
    return in_order(rows, 0, 1)


def policies(tales: Tales) -> Rows:
    groups = grouped(((e.body.policy_version or None, t.tenant), (t.id, e)) for t, e in told(tales, "Authorized"))
    rows = []
    for key, found in groups.items():
        made = [event.body.decision for _, event in found]
        times = [event.at_us for _, event in found]
        counted = [len({id_ for id_, _ in found}), len(found), made.count("deny"), made.count("hold")]
        rows.append([*key, *counted, moment(min(times)), moment(max(times))])
    return [row for row in in_order(rows, 1) if row[0] is None] + in_order([r for r in rows if r[0] is not None], 0, 1)


def model_changes(tales: Tales) -> Rows:
    rows = []
    for tale in tales:
        bodies = [event.body for event in said(tale, "ModelReplied") if event.body.served_model]
        names = list(dict.fromkeys(f"{body.served_model} {body.served_version}".strip() for body in bodies))
        if len(names) > 1:
            rows.append([str(tale.id), tale.model, names])
    return in_order(rows, 0)


def stopped(tales: Tales) -> Rows:
    rows = []
    for tale in tales:
        if status(tale) in ("cancelled", "failed"):
            asked, end = list(said(tale, "CancelRequested")), ends(tale)[-1]
            reason = None if end.erased else end.body.reason or None
            at = finished_us(tale)
            who = asked[-1].body.requester or None if asked else None
            rows.append([tale.tenant, str(tale.id), status(tale), at and moment(at), who, reason])
    return in_order(rows, 0, 1)


ANSWERS: tuple[Callable[[Tales], Rows], ...] = (
    fit_for_training,
    same_first_message,
    prompts_before_failures,
    rewards,
    scores,
    messages_by_role,
    success_by_model,
    reliability,
    retries,
    costs,
    longest_calls,
    days,
    cached,
    errors,
    speed,
    sub_agents,
    denials,
    approvals,
    effects,
    unapproved,
    in_doubt,
    erased,
    policies,
    model_changes,
    stopped,
)
