"""Proofs that requests, rows, classes and pages agree; they read everything and change nothing."""

from __future__ import annotations

from octavo.schedule.lane import Lane
from octavo.schedule.ledger import Ledger


def audit_ledger(ledger: Ledger) -> list[str]:
    """Findings against the invariants; empty when all hold."""
    running = list(ledger.running)
    findings = ledger.cache.audit([sequence.pages for sequence in running])
    used = [sequence.row for sequence in running]
    rows = sorted((*used, *ledger.free_rows, *ledger.closed_rows))
    if rows != list(range(len(ledger.rows.sequences))):
        findings.append(f"rows are used, free or closed as {rows}")
    queued = sum(len(lane.queue) for lane in ledger.lanes) + ledger.producers.parked_count
    waiting = len(ledger.sequences) - len(used) + ledger.ghosts
    counted = sum(lane.waiting for lane in ledger.lanes)
    if not queued == waiting == counted:
        findings.append(f"{queued} requests are queued, {waiting} wait, {counted} are counted")
    holders = sorted(each.order for each in running if each.holds_tail)
    if holders != sorted(each.order for each in ledger.tails.holders):
        findings.append("tails of prompts are looked for where they are not")
    for lane in ledger.lanes:
        findings += _audit_lane(ledger, lane)
    return findings


def _audit_lane(ledger: Ledger, lane: Lane) -> list[str]:
    findings = []
    name = lane.service.name
    pages = sum(len(each.pages) for each in ledger.running if each.home is lane)
    if pages != lane.pages:
        findings.append(f"class {name} holds {pages} pages, counted {lane.pages}")
    numbers, _ = ledger.rows.decoding(lane)
    decoding = ledger.rows.sequences_of(numbers)
    parts = [each.order for each in (*lane.prefilling, *decoding)]
    if sorted(parts) != sorted(each.order for each in lane.running):
        findings.append(f"class {name} has lost track of who decodes")
    exposed = [each for each in lane.running if each.is_exposed]
    ghosts = [each for each in lane.running if each.ghost]
    if exposed != list(lane.exposed) or ghosts != list(lane.ghosts):
        findings.append(f"class {name} has lost track of who may be preempted")
    if any(each.token_count - len(each.known_tokens) > each.page_tokens for each in lane.running):
        findings.append(f"class {name} has lost tokens of plain steps")
    if any(each.room != each.blocks * each.page_tokens for each in lane.running):
        findings.append(f"class {name} is wrong about who needs a page")
    return findings
