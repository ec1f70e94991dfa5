"""One thread for every test: the models are tiny, and a busy machine would spend its time on barriers."""

import pytest
import torch

pytest.register_assert_rewrite("gpt_runs")  # before a test file imports it
torch.set_num_threads(1)
