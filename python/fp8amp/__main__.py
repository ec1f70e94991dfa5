"""``python -m fp8amp``: version, build options, instruction set, CUDA, cuBLASLt and NCCL or why not, and torch."""

from .build import report

if __name__ == "__main__":
    print(report())
