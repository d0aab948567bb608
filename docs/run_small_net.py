"""Compiles the model of docs/pytorch.md, and compares it with eager PyTorch."""

import torch
from small_net import make_model

torch.manual_seed(0)
model, x = make_model()
model.eval()
compiled = torch.compile(model, backend="iree_boo_inductor")
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
print("the outputs agree")
