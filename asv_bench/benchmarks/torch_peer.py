"""A plain loop over chunks in PyTorch: how many times longer it takes, T = 4096."""

from .ground import DIM, HEADS, needed, package, ratio
from .inputs import inputs_of


class Torch:
    """Float32, 8 heads, K = V = 64; first it is seen to compute the same."""

    params = ["simple_gla", "gated_delta_rule"]
    param_names = ("operator",)
    unit = "times"
    length = 4096

    def setup(self, operator):
        self.torch = package("torch")
        self.call = needed(operator)
        self.inputs = inputs_of(self.call, self.length)
        self.tensors = {n: self.torch.asarray(x) for n, x in self.inputs.items()}

    def track_torch_over_chunkwise(self, operator):
        step = getattr(self, operator)
        ours, theirs = self.call(**self.inputs).output, self.loop(step).numpy()
        assert abs(ours - theirs).max() < 1e-3 * abs(ours).max()
        return ratio(lambda: self.loop(step), lambda: self.call(**self.inputs))

    def loop(self, step, chunk=64):
        torch, x = self.torch, self.tensors
        memory = torch.zeros((HEADS, DIM, DIM))
        outputs = []
        for start in range(0, self.length, chunk):
            part = {n: t[:, start : start + chunk] for n, t in x.items()}
            sums = part["log_decay"].cumsum(-1)
            weights = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
            output, memory = step(memory, part, sums[..., None], weights)
            outputs.append(output)
        return torch.cat(outputs, 1) * DIM**-0.5

    def simple_gla(self, memory, part, sums, weights):
        return self.finished(memory, part, sums, weights, part["value"])

    def gated_delta_rule(self, memory, part, sums, weights):
        beta = part["beta"][..., None]
        pairs = (beta * part["key"] @ part["key"].mT * weights).tril(-1)
        held = part["value"] - (sums.exp() * part["key"]) @ memory
        eye = self.torch.eye(pairs.shape[-1])
        written = self.torch.linalg.solve_triangular(
            eye + pairs, beta * held, upper=False, unitriangular=True
        )
        return self.finished(memory, part, sums, weights, written)

    def finished(self, memory, part, sums, weights, written):
        last = sums[:, -1:]
        output = (sums.exp() * part["query"]) @ memory
        output = output + (part["query"] @ part["key"].mT * weights) @ written
        left = ((last - sums).exp() * part["key"]).mT @ written
        return output, last.exp() * memory + left


class TorchTensors:
    """How many times as long as on NumPy arrays a call takes on tensors, T = 4096."""

    params = (["linear_attention", "gated_delta_rule"], ["forward", "gradient"])
    param_names = ("operator", "pass")
    unit = "times"
    timeout = 300
    length = 4096

    def setup(self, operator, direction):
        self.torch = package("torch")
        self.call, self.vjp = needed(operator), needed("vjp")
        self.arrays = inputs_of(self.call, self.length)
        tensors = {n: self.torch.from_numpy(x) for n, x in self.arrays.items()}
        if direction == "gradient":
            tensors = {n: x.requires_grad_() for n, x in tensors.items()}
        self.tensors = tensors

    def track_tensors_over_arrays(self, operator, direction):
        if direction == "forward":
            return ratio(
                lambda: self.call(**self.tensors), lambda: self.call(**self.arrays)
            )
        return ratio(self.autograd, self.pullback)

    def autograd(self):
        output = self.call(**self.tensors).output
        ones = self.torch.ones_like(output)
        self.torch.autograd.grad(output, list(self.tensors.values()), ones)

    def pullback(self):
        result, pullback = self.vjp(self.call, **self.arrays)
        ones = self.torch.ones(result.output.shape).numpy()
        pullback(ones)
