"""One thread for every test: the models are tiny, and a busy machine would spend its time on barriers."""

import torch

torch.set_num_threads(1)
