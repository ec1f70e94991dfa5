#!/usr/bin/env python3
"""What each CUDA kernel costs on an H200, on paper: from the compiler's registers and the machine code's main loop.

    kernels.py                 prints the table, from nvcc, ptxas and nvdisasm; no GPU
    kernels.py --write         also writes benchmarks/gpu/kernels.md and kernels.json
    kernels.py --check         exit 1 where instructions bind a kernel that is not in EXCEPTIONS; 77 without the tools

nvdisasm is looked for in PATH, CUDA_HOME and torch's own triton. Time of memory: bytes / 4.3 TB/s. Time of
instructions: what a warp issues in the main loop, over 132 processors of 4 issue slots at 1.755 GHz; or what the
busiest pipe takes, if longer.
"""

import argparse
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from sass import Cost, Function, disassemble

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ci"))
import kernel_lint  # noqa: E402

BANDWIDTH = 4.3e12  # bytes per second that a copy reaches
PROCESSORS, SLOTS, CLOCK = 132, 4, 1.755e9
REGISTERS, SHARED, THREADS, BLOCKS = 65536, 228 * 1024, 2048, 32  # of a processor
SHARED_RESERVED = 1024  # bytes of a block that the system takes
SIZES = {"0": 4, "1": 2, "2": 2, "3": 1, "4": 1, "E4M3": 1, "E5M2": 1, "Fp16": 2}  # DType, formats
TYPES = {"0": "FP32", "1": "FP16", "2": "BF16", "3": "E4M3", "4": "E5M2", "Fp16": "FP16"}
GRANULARITIES = {"1": "rows", "2": "1x128 blocks", "3": "128x128 blocks"}
VECTOR = 16  # elements that a thread takes at a time

# Where instructions bind, and why (numerics/random.h has the words).
HASH = "a random word for two elements is 7 integer instructions at half rate, and the bytes are few"
EXCEPTIONS = {
    r"quantize (FP16|BF16|E4M3|E5M2) to (E4M3|E5M2|FP16), stochastic": HASH,
    r"accumulate (E4M3|E5M2) to (E4M3|E5M2): store": HASH,
    r"quantize, transpose and sum (E4M3|E5M2) to .*": "the sums count for all warps here, and half of them add",
    r"(GELU|SwiGLU).*": "exp and divisions in single IEEE operations, the same bits on every CPU and GPU; not hidden",
    r"norm and quantize, (BF16|FP16)": "three passes over a row, two of them from the cache",
    r"quantize by 1x128 blocks and transpose (BF16|FP16).*": "scales for the blocks along both sides",
    r"Adam O2.*, other policies": "two random words for two elements, second draws; the default has its own loop",
}


@dataclass
class Loop:
    """A main loop: bytes read and written per element, elements per turn, turns of the loop within it; bytes that are
    read from a cache, because the kernel has just read them or they are the same for all rows. `passes`: the loops over
    a row, one after the other, instead of one loop."""

    title: str
    read: int
    written: int
    elements: int = VECTOR
    inner_turns: int = 1
    cached: int = 0
    passes: bool = False
    cheapest: bool = False  # of the loops that move these bytes, the cheapest and not the costliest


@dataclass
class Row:
    kernel: str
    registers: int
    shared: int
    blocks_per_processor: int
    occupancy: float
    bytes: int = 0
    instructions: float = 0  # per element, longest way
    instructions_least: float = 0  # shortest way
    busiest: str = ""
    memory_ms: float = 0  # per 10^9 elements
    instruction_ms: float = 0
    bound: str = ""


def main_loops(name: str) -> list[Loop]:
    """The loops of a kernel over vectors of 16 elements, from its template arguments; none where there is none."""
    base, arguments = re.match(r"(\w+)(?:<(.*)>)?", name).groups()
    types = re.findall(r"\(fp8amp::DType\)(\d)|\b(E4M3|E5M2|Fp16)\b", arguments or "")
    types = [number or form for number, form in types]
    sizes = [SIZES[t] for t in types]
    title = " to ".join(TYPES.get(t, t) for t in types)
    if base == "amax_kernel":
        return [Loop(f"amax {title}", sizes[0], 0)]
    if base == "quantize_kernel":
        how = "stochastic" if "Rounding)1" in name else "nearest"
        return [Loop(f"quantize {title}, {how}", sizes[0], sizes[1])]
    if base == "quantize_transpose_kernel":
        what = "quantize, transpose and sum" if arguments.endswith("true") else "quantize and transpose"
        return [Loop(f"{what} {title}", sizes[0], 2, 4 * VECTOR, 4)]
    if base == "column_sums_kernel":
        return [Loop(f"column sums of {title}", sizes[0], 0)]
    if base == "dequantize_kernel":
        return [Loop(f"dequantize {title}", sizes[0], sizes[1])]
    if base == "measure_sum_kernel":
        return [Loop(f"accumulate {title}: measure", sizes[0] + 1, 0)]
    if base == "store_sum_kernel":
        return [Loop(f"accumulate {title}: store", sizes[0] + 1, 1)]
    if base == "adam_kernel":
        return [Loop("Adam O2", 6, 5, cheapest=True), Loop("Adam O2, other policies", 6, 5),
                Loop("Adam O2 and E4M3 weight", 6, 6, cheapest=True),
                Loop("Adam O2 and E4M3 weight, other policies", 6, 6),
                Loop("Adam O1, m and v in FP32", 11, 10), Loop("Adam FP32", 16, 12)]  # fmt: skip
    if base in ("fused_quantize_kernel", "fused_transpose_kernel"):
        operation, read, cached = fused_traffic(int(re.search(r"FusedOp\)(\d)", name)[1]), sizes[0])
        if base == "fused_quantize_kernel":
            cached += 2 * read if operation == "norm" else 0  # mean and deviation before
            return [Loop(f"{operation} and quantize, {title}", read, 1, cached=cached, passes=True)]
        return [Loop(f"{operation}, quantize and transpose, {title}", read, 2, 4 * VECTOR, 4, cached)]
    if base == "quantize_rows_kernel":
        who = "a warp" if arguments.endswith(" 32") else "a block"
        return [Loop(f"quantize by rows {title}, {who} for each", sizes[0], 1, cached=sizes[0], passes=True)]
    if base == "quantize_tiles_kernel":
        how = GRANULARITIES[re.search(r"ScaleGranularity\)(\d)", name)[1]]
        return [Loop(f"quantize by {how} and transpose {title}", sizes[0], 2, 4 * VECTOR)]
    if base == "dequantize_blocks_kernel":
        return [Loop(f"dequantize blocks {title}", sizes[0], sizes[1])]
    if base == "sum_shards_kernel":
        return [Loop(f"sum of 8 shards {title}", 8, 1)]
    if base == "measure_shards_kernel":
        return [Loop(f"amax of the sum of 8 shards {title}", 8, 0)]
    if base == "norm_backward_kernel":
        return [Loop(f"norm backward, by rows {title}", 2 * sizes[0], sizes[0], cached=2 * sizes[0] + 8, passes=True)]
    if base == "norm_columns_kernel":
        return [Loop(f"norm backward, by columns {title}", 2 * sizes[0], 0)]
    if base == "grad_amax_kernel":
        return [Loop(f"Adam: amax of {bits}-bit gradients", bits // 8, 0) for bits in (8, 16, 32)]
    return []


def fused_traffic(operation: int, size: int) -> tuple[str, int, int]:
    """Name of a FusedOp, bytes read per element of its result, and bytes read from a cache."""
    return (
        ("norm", size, 8),  # gamma and beta
        ("GELU", size, 0),
        ("SwiGLU", 2 * size, 0),
        ("GELU backward", 2 * size, 0),
        ("SwiGLU backward", 3 * size // 2, 3 * size - 3 * size // 2),  # dy and gate for both of its gradients
    )[operation]


def find_nvdisasm() -> Path | None:
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin",
               Path(sysconfig.get_path("purelib")) / "triton" / "backends" / "nvidia" / "bin"]  # fmt: skip
    found = shutil.which("nvdisasm") or next((f / "nvdisasm" for f in folders if (f / "nvdisasm").is_file()), None)
    return Path(found) if found else None


def occupancy(registers: int, shared: int, threads: int) -> int:
    """Blocks per processor. A warp gets registers in units of 256."""
    warps = threads // 32
    of_a_block = warps * ((registers * 32 + 255) // 256 * 256)
    return min(REGISTERS // of_a_block, SHARED // (shared + SHARED_RESERVED), THREADS // threads, BLOCKS)


def measure(row: Row, function: Function, loop: Loop) -> None:
    """Fills in what the main loop costs: that whose 16-byte accesses move the loop's bytes."""
    loads, stores = (loop.read + loop.cached) * loop.elements // 16, loop.written * loop.elements // 16
    if loop.passes:
        longest, shortest = (function.passes(longest=way) for way in (True, False))
        if (longest.wide_loads, longest.wide_stores) != (loads, stores):
            row.bound = "no loop moves just these bytes in 16-byte accesses"
        else:
            fill_in(row, loop, longest, shortest, loop.elements)
        return
    found = []
    for edge in function.loops:
        cost = function.turn(*edge, loop.inner_turns)
        if cost.wide_loads and cost.wide_loads % max(loads, 1) == 0:
            turns = cost.wide_loads // loads
            if cost.wide_stores == turns * stores:
                found.append((cost.bound[1] / turns, turns, edge, cost))
    if not found:
        row.bound = "no loop moves just these bytes in 16-byte accesses"
        return
    # a compiler's unrolled loop stands beside the one for what is left over: the unrolled one runs
    most = max(turns for _, turns, _, _ in found)
    choose = min if loop.cheapest else max
    _, turns, edge, cost = choose((entry for entry in found if entry[1] == most), key=lambda entry: entry[0])
    fill_in(row, loop, cost, function.turn(*edge, loop.inner_turns, longest=False), turns * loop.elements)


def fill_in(row: Row, loop: Loop, longest: Cost, shortest: Cost, elements: int) -> None:
    busiest, cycles = longest.bound
    row.bytes = loop.read + loop.written
    row.instructions = longest.instructions / elements
    row.instructions_least = shortest.instructions / elements
    row.busiest = busiest
    row.memory_ms = 1e12 * row.bytes / BANDWIDTH
    row.instruction_ms = 1e12 * cycles / elements / 32 / (PROCESSORS * SLOTS * CLOCK)
    row.bound = "memory" if row.memory_ms >= row.instruction_ms else "instructions"


def block_sizes(ptx: str) -> dict[str, int]:
    """{mangled name: threads of a block}, where the kernel states them; others are launched with one."""
    return {name: int(threads) for name, threads in re.findall(r"\.entry (\w+)\([^{]*?\.maxntid (\d+)", ptx)}


def rows_of(source: Path, nvdisasm: Path, folder: Path) -> list[Row]:
    ptx = folder / f"{source.stem}.ptx"
    if not ptx.exists():
        kernel_lint.compile_ptx(source, ptx)
    threads_of = block_sizes(ptx.read_text())
    _, used = kernel_lint.assemble(ptx, "sm_90", ptx.with_suffix(".sm_90"))
    functions = disassemble(nvdisasm, ptx.with_suffix(".sm_90"))
    names = kernel_lint.short_names(list(used))
    rows = []
    for mangled, (registers, shared) in used.items():
        threads = threads_of.get(mangled, 32)
        blocks = occupancy(registers, shared, threads)
        for loop in main_loops(names[mangled]) or [None]:
            title = loop.title if loop else re.sub(r"\(fp8amp::DType\)|\(.*\*.*\)$", "", names[mangled])
            row = Row(title, registers, shared, blocks, blocks * threads / THREADS)
            if loop:
                measure(row, functions[mangled], loop)
            rows.append(row)
    return rows


def exception(row: Row) -> str:
    return next((why for name, why in EXCEPTIONS.items() if re.fullmatch(name, row.kernel)), "")


HEAD = """# The CUDA kernels on paper

Written by `python benchmarks/kernels.py --write` with nvcc {nvcc} for sm_90. **Nothing here was measured: nothing has
run on a GPU.**

Time per 10^9 elements on an H200, from memory (bytes / 4.3 TB/s) and from instructions: those that a warp issues in a
turn of the main loop on its longest way (every option on, stochastic rounding where it is chosen at run time), at
132 x 4 slots x 1.755 GHz, or the busiest pipe where that takes longer (integers, logic, comparisons, FP8 conversions
and integer products at half rate, 1/x and 1/sqrt(x) at an eighth). Left out are calls: the slow ways of division and
square root, and codes of what is out of range. Bytes per element are the least possible: a kernel whose loop moved
more would stand here as an error. Instructions per element: shortest and longest way. Occupancy: blocks of a processor,
and the share of its threads.

| kernel | registers | shared | occupancy | bytes | instructions | busiest | memory | instructions | bound by |
|---|---|---|---|---|---|---|---|---|---|
"""
TAIL = """
Without a main loop over vectors of 16 elements:

| kernel | registers | shared | occupancy |
|---|---|---|---|
"""


def markdown(rows: list[Row], nvcc: str) -> str:
    loops, others = [], []
    for r in rows:
        line = f"| {r.kernel} | {r.registers} | {r.shared} | {r.blocks_per_processor}, {r.occupancy:.0%} |"
        if not r.bytes:
            others.append(line)
            continue
        why = f": {exception(r)}" if r.bound != "memory" else ""
        loops.append(f"{line} {r.bytes} | {r.instructions_least:.1f}-{r.instructions:.1f} | {r.busiest} | "
                     f"{r.memory_ms:.2f} ms | {r.instruction_ms:.2f} ms | {r.bound}{why} |")  # fmt: skip
    return HEAD.format(nvcc=nvcc) + "\n".join(loops) + "\n" + TAIL + "\n".join(others) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/gpu/kernels.md and kernels.json")
    parser.add_argument("--check", action="store_true", help="fail where instructions bind")
    parser.add_argument("--ptx", type=Path, metavar="FOLDER", help="what `.ci/kernel_lint.py --keep FOLDER` compiled")
    args = parser.parse_args()
    nvdisasm = find_nvdisasm()
    if nvdisasm is None or not shutil.which("nvcc"):
        print("skipped: no nvcc or no nvdisasm")
        return 77
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        ptx = args.ptx or Path(folder)
        results = list(pool.map(lambda source: rows_of(source, nvdisasm, ptx), kernel_lint.sources()))
    rows = sorted((row for found in results for row in found), key=lambda row: row.kernel)
    text = markdown(rows, kernel_lint.nvcc_version())
    if args.write:
        folder = ROOT / "benchmarks" / "gpu"
        folder.mkdir(exist_ok=True)
        (folder / "kernels.md").write_text(text)
        (folder / "kernels.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if not args.check:
        print(text)
        return 0
    not_memory = [row for row in rows if row.bound not in ("", "memory")]
    bad = [row for row in not_memory if row.bound != "instructions" or not exception(row)]
    for row in bad:
        print(f"{row.kernel}: {row.bound}, {row.instruction_ms:.2f} ms against {row.memory_ms:.2f} ms of memory")
    of_memory = sum(row.bound == "memory" for row in rows)
    print(f"{of_memory} loops bound by memory, {len(not_memory) - len(bad)} known not to be, {len(bad)} errors")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
