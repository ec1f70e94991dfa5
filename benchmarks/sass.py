"""Machine code of a CUDA kernel, as nvdisasm prints it: its loops, and what one turn of a loop issues.

The longest way through a loop counts, among those with the most 16-byte accesses of global memory: of the policies
and options that a kernel chooses from at run time, the dearest. Left out are ways through a call: the slow ways of
division and square root, and of values out of range.
"""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# Cycles that an instruction of a warp holds its pipe in one of the four parts of a multiprocessor of compute capability
# 9.0 (CUDA C++ Programming Guide, throughput of native arithmetic instructions): FP32 and FP16 128 results per clock
# and multiprocessor; integers, comparisons, logic, conversions of FP8 and FP16, and FP64 64; special functions 16.
PIPES = (
    ("special", 8, re.compile(r"MUFU|I2F|F2I|F2F(?!P)|POPC|FLO|BREV")),
    ("fp64", 2, re.compile(r"D(ADD|MUL|FMA|SETP)")),
    ("multiply", 2, re.compile(r"IMAD|IDP")),
    ("float", 1, re.compile(r"F(ADD|MUL|FMA)|H(ADD2|MUL2|FMA2)")),
    ("none", 0, re.compile(r"LD|ST\b|ST[GS]|RED|ATOM|U[A-Z0-9]+|R2UR|B(RA|SSY|SYNC|AR)|NOP|C?S2R|EXIT|CALL|RET|SHFL")),
    ("integer", 2, re.compile(r".")),
)
WIDE = re.compile(r"^(LDG?|STG?)\.E\..*128")  # of global memory, or of an address that may be so


@dataclass(frozen=True)
class Instruction:
    predicate: str
    name: str
    operands: str

    @property
    def pipe(self) -> tuple[str, int]:
        return next((pipe, cycles) for pipe, cycles, names in PIPES if names.match(self.name))

    @property
    def is_wide(self) -> bool:
        return WIDE.match(self.name) is not None


@dataclass
class Cost:
    """What a warp issues, in instructions, and the cycles for which it holds each pipe."""

    instructions: int = 0
    wide_loads: int = 0
    wide_stores: int = 0
    cycles: Counter[str] | None = None

    def add(self, instruction: Instruction, times: int) -> None:
        self.cycles = self.cycles if self.cycles is not None else Counter()
        self.instructions += times
        self.wide_loads += times * (instruction.is_wide and instruction.name.startswith("LD"))
        self.wide_stores += times * (instruction.is_wide and instruction.name.startswith("ST"))
        pipe, cycles = instruction.pipe
        self.cycles[pipe] += times * cycles

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.instructions + other.instructions, self.wide_loads + other.wide_loads,
                    self.wide_stores + other.wide_stores,
                    (self.cycles or Counter()) + (other.cycles or Counter()))  # fmt: skip

    @property
    def bound(self) -> tuple[str, int]:
        """The slowest of the issue slots and the pipes, and its cycles."""
        cycles = dict(self.cycles or {}, issue=self.instructions)
        # a multiplication of integers holds one half of the FP32 lanes
        cycles["float"] = cycles.get("float", 0) + cycles.get("multiply", 0) // 2
        cycles.pop("none", None)
        return max(cycles.items(), key=lambda item: (item[1], item[0] == "issue"))


class Function:
    """Instructions, and the basic blocks as [first, last] numbers of them."""

    def __init__(self, instructions: list[Instruction], labels: dict[str, int]):
        self.instructions, self.labels = instructions, labels

    def target(self, i: int) -> int | None:
        found = re.search(r"`\((\.L\w+)\)", self.instructions[i].operands)
        if not self.instructions[i].name.startswith("BRA") or not found:
            return None
        return self.labels.get(found.group(1))

    @cached_property
    def blocks(self) -> dict[int, int]:
        starts = {0, *self.labels.values()}
        for i, instruction in enumerate(self.instructions):
            if instruction.name.startswith(("BRA", "EXIT", "RET", "CALL")):
                starts.add(i + 1)
        ordered = sorted(s for s in starts if s < len(self.instructions))
        ends = [*ordered[1:], len(self.instructions)]
        return {first: end - 1 for first, end in zip(ordered, ends, strict=True)}

    @cached_property
    def successors(self) -> dict[int, list[int]]:
        graph = {}
        for first, last in self.blocks.items():
            instruction, target = self.instructions[last], self.target(last)
            following = [target] if target is not None else []
            # a second predicate among the operands ("BRA P1, ...") makes a branch conditional as well
            conditional = instruction.predicate or re.match(r"!?U?P\d", instruction.operands)
            leaves = instruction.name.startswith(("BRA", "EXIT", "RET")) and not conditional
            if not leaves and last + 1 in self.blocks:
                following.append(last + 1)
            graph[first] = following
        return graph

    def loop(self, head: int, latch: int) -> set[int]:
        """The blocks from which `latch` is reached without passing `head`."""
        predecessors: dict[int, list[int]] = {block: [] for block in self.blocks}
        for block, following in self.successors.items():
            for other in following:
                predecessors[other].append(block)
        found, open_blocks = {head, latch}, [latch]
        while open_blocks:
            block = open_blocks.pop()
            if block == head:
                continue
            new = [other for other in predecessors[block] if other not in found]
            found.update(new)
            open_blocks += new
        return found

    @cached_property
    def loops(self) -> dict[tuple[int, int], set[int]]:
        """{(head, latch): blocks} of every backward branch."""
        return {(head, block): self.loop(head, block)
                for block, following in self.successors.items()
                for head in following if head <= block}  # fmt: skip

    def passes(self, longest: bool) -> Cost:
        """One turn each of the innermost loops with 16-byte accesses."""
        wide = {edge: blocks for edge, blocks in self.loops.items()
                if any(i.is_wide for b in blocks for i in self.instructions[b : self.blocks[b] + 1])}  # fmt: skip
        innermost = [edge for edge, blocks in wide.items() if not any(other < blocks for other in wide.values())]
        return sum((self.turn(*edge, longest=longest) for edge in innermost), Cost())

    def turn(self, head: int, latch: int, inner_turns: int = 1, longest: bool = True) -> Cost:
        """One turn of a loop; a loop within it turns `inner_turns` times for each."""
        blocks = self.loops[head, latch]
        inner: set[int] = set()
        for edge, others in self.loops.items():
            if edge != (head, latch) and others < blocks and head not in others:
                inner |= others
        sign = 1 if longest else -1

        def weight(block: int) -> tuple[int, int]:
            body = self.instructions[block : self.blocks[block] + 1]
            times = inner_turns if block in inner else 1
            if any(instruction.name.startswith("CALL") for instruction in body):
                return -1000000, 0
            return times * sum(i.is_wide for i in body), sign * times * len(body)

        best: dict[int, tuple[tuple[int, int], int | None]] = {}  # from a block to the end of the turn
        order, seen, stack = [], {head}, [(head, iter(self.successors[head]))]
        while stack:  # depth first: a block is placed after all that follow it
            block, following = stack[-1]
            other = next((o for o in following if o in blocks and o not in seen and block != latch), None)
            if other is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(other)
                stack.append((other, iter(self.successors[other])))
        for block in order:
            wide, length = weight(block)
            ways = [(best[other][0], other) for other in self.successors[block] if other in best]
            if block == latch:
                best[block] = (wide, length), None
            elif ways:
                (wide_after, length_after), other = max(ways)
                best[block] = (wide + wide_after, length + length_after), other
        cost, block = Cost(), head if head in best else None
        while block is not None:
            for instruction in self.instructions[block : self.blocks[block] + 1]:
                cost.add(instruction, inner_turns if block in inner else 1)
            block = best[block][1]
        return cost


def disassemble(nvdisasm: Path, cubin: Path) -> dict[str, Function]:
    """{mangled name: function}"""
    text = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
    functions: dict[str, Function] = {}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if section := re.match(r"\.text\.(\w+):", line):
            instructions, labels = [], {}
            functions[section.group(1)] = Function(instructions, labels)
        elif label := re.match(r"(\.L\w+):", line):
            labels[label.group(1)] = len(instructions)
        elif code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z0-9_.]+)\s*(.*?)\s*;", line):
            instructions.append(Instruction(code.group(1) or "", code.group(2), code.group(3)))
    return functions
