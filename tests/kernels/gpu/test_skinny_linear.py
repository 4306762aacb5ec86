"""Products of few tokens, against float64; the reference of kernels/reference with them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from kernels.gpu.linear_tuning import MAX_TOKENS, LinearConfig
from kernels.gpu.rms_norm import rms_norm
from kernels.gpu.silu_mul import silu_mul
from kernels.gpu.skinny_linear import skinny_linear
from kernels.reference import skinny_linear as reference
from tests.kernels.gpu.closeness import BOUNDS, assert_near

ONE = LinearConfig(tile_rows=4, tile_columns=64, num_warps=2, num_stages=2)
MORE = LinearConfig(tile_rows=16, tile_columns=64, num_warps=2, num_stages=2)
TOKENS = [1, 2, 3, 4, 7, 8, 9, 15, 16]
SHAPES = [(1, 16), (3, 7), (16, 64), (17, 63), (40, 65), (33, 200)]  # around the borders of tiles
# Not "norm and gated": the interpreter cuts where a GPU rounds, and four cuts in a row pass 1e-2.
FORMS = ["plain", "norm", "gated", "add", "norm and add"]


class Product:
    """The tensors of a form, and what float64 makes of them."""

    def __init__(
        self,
        num_tokens: int,
        num_rows: int,
        num_columns: int,
        device: torch.device,
        *,
        form: str = "plain",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        def random(*shape: int) -> Tensor:
            return torch.randn(*shape).to(device, dtype)

        self.gated = "gated" in form
        self.x = random(num_tokens, num_columns)
        self.weight = random(num_rows * (2 if self.gated else 1), num_columns)
        self.norm = random(num_columns) if "norm" in form else None
        self.residual = random(num_tokens, num_rows) if "add" in form else None
        self.num_rows = num_rows

    def expected(self) -> Tensor:
        x = self.x.double()
        if self.norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.norm.double()
            x = x.to(self.x.dtype).double()
        product = x @ self.weight.double().T
        if self.gated:
            gate, up = product.chunk(2, dim=-1)
            product = gate / (1 + torch.exp(-gate)) * up
        return product if self.residual is None else product + self.residual.double()

    def by(self, linear: Callable[..., Tensor], **keywords: object) -> Tensor:
        add = None if self.residual is None else self.residual.clone()
        out = linear(
            self.x, self.weight, norm=self.norm, eps=1e-5, gated=self.gated, add=add, **keywords
        )
        if add is not None:
            assert out is add, "the residual is updated in place"
        return out

    def multiply(self, config: LinearConfig | None = None) -> Tensor:
        """The kernel's result, with tiles of the tests' own; its output was NaN before."""
        config = config or (ONE if len(self.x) == 1 else MORE)
        if self.residual is not None:
            return self.by(skinny_linear, config=config)
        out = self.x.new_full((len(self.x), self.num_rows), math.nan)
        assert self.by(skinny_linear, config=config, out=out) is out
        return out


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_every_form_is_right_in_every_dtype(
    num_tokens: int, form: str, dtype: torch.dtype, device: torch.device
) -> None:
    product = Product(num_tokens, 37, 150, device, form=form, dtype=dtype)

    assert_near(product.multiply(), product.expected())
    assert_near(product.by(reference.skinny_linear), product.expected())


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("form", ["norm and gated", "add"])
def test_any_few_tokens_are_multiplied(num_tokens: int, form: str, device: torch.device) -> None:
    product = Product(num_tokens, 19, 80, device, form=form)

    assert_near(product.multiply(), product.expected())


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize(("num_rows", "num_columns"), SHAPES)
def test_rows_and_columns_need_not_fill_their_tiles(
    num_rows: int, num_columns: int, num_tokens: int, device: torch.device
) -> None:
    for form in ("norm and gated", "norm and add"):
        product = Product(num_tokens, num_rows, num_columns, device, form=form)

        assert_near(product.multiply(), product.expected())


@pytest.mark.parametrize(
    ("num_tokens", "config"),
    [
        (1, LinearConfig(1, 128, num_warps=1, num_stages=1)),
        (1, LinearConfig(8, 32, num_warps=4, num_stages=4)),
        (1, LinearConfig(2, 512, num_warps=4, num_stages=3)),
        (6, LinearConfig(8, 128, num_warps=8, num_stages=2)),
        (6, LinearConfig(32, 32, num_warps=1, num_stages=3)),
        (6, LinearConfig(64, 256, num_warps=4, num_stages=1)),
    ],
)
def test_tiles_change_no_result(
    num_tokens: int, config: LinearConfig, device: torch.device
) -> None:
    product = Product(num_tokens, 70, 192, device, form="norm and gated")

    assert_near(product.multiply(config), product.expected())


@pytest.mark.parametrize("num_tokens", [1, 4])
def test_rows_of_x_may_be_a_part_of_wider_ones(num_tokens: int, device: torch.device) -> None:
    product = Product(num_tokens, 24, 96, device, form="norm")
    alone = product.multiply()
    wider = torch.full((num_tokens, 130), math.nan, device=device)
    wider[:, 16:112] = product.x
    product.x = wider[:, 16:112]

    assert torch.equal(product.multiply(), alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 4])
def test_what_is_fused_rounds_where_separate_kernels_do(
    num_tokens: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Sums of a few small integers are exact, so that only the roundings between can differ."""
    x = torch.randint(-3, 4, (num_tokens, 32), device=device).to(dtype)
    x[:, 0] = 3
    weight = torch.randint(-2, 3, (40, 32), device=device).to(dtype) / 8
    norm = torch.randint(1, 3, (32,), device=device).to(dtype)
    config = ONE if num_tokens == 1 else MORE

    product = skinny_linear(x, weight, config=config)
    gated = skinny_linear(x, weight, gated=True, config=config)

    assert torch.equal(product.double(), x.double() @ weight.double().T)
    assert torch.equal(gated, silu_mul(product))
    one_hot = torch.eye(32, device=device, dtype=dtype)
    normed = skinny_linear(x, one_hot, norm=norm, eps=1e-5, config=config)
    assert torch.equal(normed, rms_norm(x, norm, 1e-5))


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_a_sum_with_the_residual_is_rounded_once(num_tokens: int, device: torch.device) -> None:
    """257 is no bfloat16: rounded before it is added it would be 256, and the sum 0."""
    x = torch.ones(num_tokens, 257, dtype=torch.bfloat16, device=device)
    weight = torch.ones(3, 257, dtype=torch.bfloat16, device=device)

    for linear in (skinny_linear, reference.skinny_linear):
        add = torch.full((num_tokens, 3), -256, dtype=torch.bfloat16, device=device)
        assert (linear(x, weight, add=add) == 1).all()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("num_tokens", [1, 2, 16])
def test_without_a_config_the_table_has_one(
    num_tokens: int, dtype: torch.dtype, device: torch.device
) -> None:
    for form in ("norm", "gated"):
        product = Product(num_tokens, 48, 576, device, form=form, dtype=dtype)

        assert_near(product.by(skinny_linear), product.expected())


def test_a_token_of_nan_spoils_no_other(device: torch.device) -> None:
    product = Product(5, 20, 70, device, form="norm and gated")
    product.x[2] = math.nan

    out, kept = product.multiply(), [0, 1, 3, 4]

    assert_near(out[kept], product.expected()[kept])
    assert out[2].isnan().all()


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    weight = torch.ones(6, 8, device=device)

    assert skinny_linear(torch.empty(0, 8, device=device), weight).shape == (0, 6)
    assert skinny_linear(torch.empty(0, 8, device=device), weight, gated=True).shape == (0, 3)


def test_more_than_few_tokens_are_refused(device: torch.device) -> None:
    with pytest.raises(AssertionError, match="few"):
        skinny_linear(torch.ones(MAX_TOKENS + 1, 8, device=device), torch.ones(6, 8, device=device))


@pytest.mark.parametrize("num_tokens", [1, 2, 16])
@pytest.mark.parametrize(("num_rows", "num_columns"), [(1024, 3072), (3072, 1024), (576, 1536)])
def test_a_captured_graph_gives_the_same_on_every_replay(
    cuda: torch.device, num_tokens: int, num_rows: int, num_columns: int
) -> None:
    shape = num_tokens, num_rows, num_columns
    product = Product(*shape, cuda, form="norm and gated", dtype=torch.bfloat16)
    eager = product.by(skinny_linear)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = product.by(skinny_linear)
    for _ in range(20):
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, eager)
    assert_near(out, product.expected())


@pytest.mark.parametrize("num_tokens", [1, 16])
def test_weights_past_two_to_the_31_elements_are_reached(
    cuda: torch.device, num_tokens: int
) -> None:
    num_columns = 4096
    weight = torch.zeros(2**31 // num_columns + 64, num_columns, dtype=torch.bfloat16, device=cuda)
    weight[-64:] = torch.randn(64, num_columns, device=cuda)
    x = torch.randn(num_tokens, num_columns, device=cuda).bfloat16()

    out = skinny_linear(x, weight)

    assert not out[:, :-64].any()
    assert_near(out[:, -64:], x.double() @ weight[-64:].double().T)
