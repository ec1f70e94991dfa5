#!/usr/bin/env python3
"""All 2^32 floats through the casts of the CUDA backend, compared with the CPU backend bit for bit.

all_floats.py [--device cuda|cpu] [--chunks N]     N of 128 chunks of 2^25 floats, spread evenly (default: all)
"""

import argparse
import sys

import torch
from fp8amp import _ops

CHUNK = 1 << 25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--chunks", type=int, default=128, choices=(1, 2, 4, 8, 16, 32, 64, 128))
    args = parser.parse_args()
    one = torch.ones(())
    one_there = one.to(args.device)
    different = 0
    for i in range(0, 128, 128 // args.chunks):
        first = i * CHUNK - (1 << 31)
        x = torch.arange(first, first + CHUNK, dtype=torch.int32).view(torch.float32)
        there = torch.arange(first, first + CHUNK, dtype=torch.int32, device=args.device).view(torch.float32)
        for format in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16):
            device = _ops.quantize(there, None, format, scale=one_there)[0]  # runs while the CPU makes the same
            host = _ops.quantize(x, None, format, scale=one)[0]
            wrong = host.to(args.device).view(torch.uint8) != device.view(torch.uint8)
            different += int(wrong.sum())
    print(f"{args.chunks * CHUNK:,} floats, three formats: {different} bytes differ")
    return different != 0


if __name__ == "__main__":
    sys.exit(main())
