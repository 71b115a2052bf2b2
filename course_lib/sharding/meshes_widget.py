"""Which mesh wins: for a model, devices and links, rank every mesh, and show what rules it out."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.core.memory import OPTIMIZERS, BatchSize, lstm_size
from course_lib.drawing.explorer import Explorer, choice, powers_of_two, slider
from course_lib.drawing.svg import Drawing, box, legend, table, text
from course_lib.messages.link import Link
from course_lib.model_parallel.placement import CannotPlace
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import h200_block_times
from course_lib.runtime.words import counted, memory_in_words, time_in_words
from course_lib.sharding.choose_plan import best_of_each_way, plans
from course_lib.sharding.network import Network
from course_lib.sharding.plan import Plan

LEFT, WIDTH, TOP, ROW, TALL = 190, 300, 60, 27, 20
STEPS, VOCABULARY = 128, 50_000
PIECES = {"schedules": ("wavefront", "interleaved"), "micro_batches": (1, 4, 16), "chunks": (4,), "recompute": (False,)}
PIECES |= {"zero": False}  # ZeRO-1 would more than double the time of a redraw
OVERHEAD = 500e-6
LATENCY_INSIDE, LATENCY_BETWEEN = 5e-6, 15e-6
INSIDE = {rate: f"{rate} GB/s" for rate in (5, 25, 50, 100, 300, 450, 900)}
BETWEEN = {rate: f"{rate} GB/s" for rate in (0.1, 1, 3, 12, 25, 50, 100, 400)}
DEVICES = {size: f"{size} GiB" for size in (16, 24, 40, 80, 141, 192)}
MOST_ROWS = 8  # in the picture: with the controls, they fit on a laptop's screen; the table has all rows
PARTS = {  # how the parts of a plan's time are drawn, with the plan's own names
    "forward": ("computing", ("computing", "recomputing", "starting actions")),
    "idle": ("bubble and messages", ("bubble", "messages")),
    "communication": ("sums and gathering", ("gathering and summing", "summing gradients")),
    "update": ("updating weights", ("updating weights",)),
}


@dataclass(frozen=True)
class Candidate:
    """The best plan for one mesh and order, and the reason why it does not win; empty for the winner."""

    name: str
    plan: Plan | None
    reason: str

    @property
    def parts(self) -> dict[str, float]:
        """Return the seconds of a step, by how they are drawn."""
        assert self.plan is not None
        seconds = self.plan.parts
        return {part: sum(seconds.get(name, 0.0) for name in names) for part, (_, names) in PARTS.items()}


class MeshExplorer(Explorer):
    """Show which mesh of replicas x stages is fastest for a model, devices and links, and what rules the others out.

    The model is a text model of 50,000 words, and sequences have 128 steps.
    """

    title = "Which mesh wins"
    help = (
        "A mesh is replicas x stages, with the stages of a replica or the replicas of a stage inside a node, or "
        "replicas x shards of the weights. Each piece takes the time measured on an H200 for its size. Weights are "
        f"float32, sequences have {STEPS} steps, the vocabulary has {VOCABULARY:,} words, and no pipeline uses ZeRO-1."
    )

    def __init__(self) -> None:
        super().__init__(
            [
                slider("hidden", "hidden units", powers_of_two(512, 16384), 4096),
                slider("layers", "LSTM layers", [2, 4, 6, 8, 14, 16, 30], 14),
                slider("sequences", "sequences per update", powers_of_two(8, 8192), 512),
                slider("devices", "devices", powers_of_two(1, 512), 16),
                slider("per_node", "devices per node", [1, 2, 4, 8, 16], 8),
                slider("inside", "link inside a node", INSIDE, 300),
                slider("between", "link between nodes", BETWEEN, 25),
                choice("memory", "memory of a device", DEVICES, 80),
                choice("precision", "precision", ["float32", "tf32", "bfloat16"], "tf32"),
                choice("optimizer", "optimizer", list(OPTIMIZERS), "Adam"),
            ]
        )

    def candidates(self) -> list[Candidate]:
        """Return every mesh of the devices: first those that fit, fastest first, then the others."""
        chosen = self.values
        devices, memory = chosen["devices"], chosen["memory"] * 2**30
        model = lstm_size(VOCABULARY, chosen["hidden"], chosen["layers"])
        ways = {name: chosen[name] for name in ("precision", "optimizer")}
        work = Work.of(model, BatchSize(STEPS, chosen["sequences"]), h200_block_times(), **ways)
        inside, between = Link(LATENCY_INSIDE, 1e9 * chosen["inside"]), Link(LATENCY_BETWEEN, 1e9 * chosen["between"])
        try:
            all_plans = plans(work, devices, Network(inside, between, chosen["per_node"]), overhead=OVERHEAD, **PIECES)
        except CannotPlace:
            all_plans = []
        best = best_of_each_way(sorted(all_plans, key=lambda plan: (plan.bytes > memory, plan.seconds)))
        fastest = min((plan.seconds for plan in best if plan.bytes <= memory), default=0.0)
        candidates = []
        for plan in best:
            name = f"{plan.mesh}, {plan.neighbors}" if plan.neighbors else plan.mesh
            candidates.append(Candidate(name, plan, _why_not(plan, memory, fastest)))
        planned = {plan.stages for plan in best}
        for stages in (number for number in range(1, devices + 1) if devices % number == 0 and number not in planned):
            replicas = devices // stages
            reason = f"{replicas} replicas, but only {work.sequences} sequences"
            if stages > len(work.blocks):
                reason = f"{stages} stages, but only {len(work.blocks)} blocks to divide"
            candidates.append(Candidate(f"{replicas} x {stages}", None, reason))
        return candidates

    def draw(self) -> Drawing:
        everything = self.candidates()
        candidates = everything[:MOST_ROWS]
        longest = max((candidate.plan.seconds for candidate in candidates if candidate.plan), default=1.0)
        shapes = [legend([(part, words) for part, (words, _) in PARTS.items()], 0, 16)]
        shapes += [text(0, TOP - 12, "mesh", "ink strong"), text(LEFT, TOP - 12, "time of an update", "ink strong")]
        for number, candidate in enumerate(candidates):
            shapes.append(_row(candidate, WIDTH / longest, TOP + ROW * number))
        rows = []
        for candidate in everything:
            if plan := candidate.plan:
                facts = str(plan.pieces), time_in_words(plan.seconds), memory_in_words(plan.bytes)
                rows.append([candidate.name, *facts, candidate.reason or "the fastest that fits"])
        head = ["replicas x stages or shards", "pieces", "update", "per device", "verdict"]
        below = table(head, rows, "The same in numbers")
        return Drawing("".join(shapes), 740, TOP + ROW * len(candidates) + 8, self._words(candidates), below)

    def _words(self, candidates: list[Candidate]) -> str:
        best = candidates[0]
        if best.plan is None or best.reason:
            return f"No mesh of {counted(self.values['devices'], 'device')} will do. {best.name}: {best.reason}."
        shares = {PARTS[part][0]: seconds / best.plan.seconds for part, seconds in best.parts.items()}
        spent = ", ".join(f"{share:.0%} {name}" for name, share in shares.items())
        sentence = (
            f"{best.name} wins, with {best.plan.pieces}: "
            f"{time_in_words(best.plan.seconds)} per update, of which {spent}; {memory_in_words(best.plan.bytes)} "
            "on the fullest device."
        )
        return sentence + "".join(f" {candidate.name}: {candidate.reason}." for candidate in candidates[1:3])


explore_meshes = MeshExplorer


def _why_not(plan: Plan, memory: int, fastest: float) -> str:
    """Return what rules this plan out; empty if it is the fastest."""
    if plan.bytes > memory:
        return f"does not fit: {memory_in_words(plan.bytes)}; a device has {memory_in_words(memory)}"
    if plan.seconds <= fastest:
        return ""
    parts = Candidate(plan.mesh, plan, "").parts
    worst = max(("idle", "communication"), key=lambda part: parts[part])
    share = parts[worst] / plan.seconds
    return f"{plan.seconds / fastest:.2f} times as long; {share:.0%} of it is {PARTS[worst][0]}"


def _row(candidate: Candidate, scale: float, top: float) -> str:
    ink, words = "ink" if candidate.reason else "ink strong", candidate.reason.split(";")[0] or "the fastest that fits"
    parts = candidate.parts if candidate.plan else {}
    if candidate.reason.startswith("does not fit"):
        parts = {"stuck": sum(parts.values())}
    shapes, x = [text(0, top + 15.5, candidate.name, ink)], float(LEFT)
    for part, seconds in parts.items():
        shapes.append(box(x, top, seconds * scale, TALL, part))
        x += seconds * scale
    return "".join([*shapes, text(x + 8, top + 15.5, words, ink)])
