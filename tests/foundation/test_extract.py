"""Extraction: any set of activations in the one forward pass, and a compressor fitted after the fact."""

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.errors import InputError
from events.log import InteractionLog
from events.splits import Calendar
from foundation.checkpoint import INFO, read_info
from foundation.config import REPRESENTATION_PREFIXES, GemConfig
from foundation.extract import logging_cost, period_rows, reconstruction, refit_compressor
from foundation.flops import count_flops, logging_flops
from foundation.gem import Gem, activation_widths
from foundation.layout import InputLayout
from foundation.presets import large_model, tiny_model
from foundation.recipes import tiny
from foundation.teacher import Teacher
from foundation.train import main as train
from foundation.train import prepare
from tests.command_runner import run_commands
from tests.events.small_logs import SCHEMA, small_log
from tests.foundation.fake_batches import fake_batch

LAYOUT = InputLayout(SCHEMA)
TASKS = len(SCHEMA.tasks)
EXTRAS = replace(tiny_model(), domain_experts=4, aggregates=10)
NAMES = ("embedding", "hidden-0", "hidden-1", "head", "score")


def gem(*extraction: str, config: GemConfig = EXTRAS) -> Gem:
    torch.manual_seed(7)
    return Gem(LAYOUT, replace(config, extraction=extraction)).eval()


def own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("compressor.")}


@pytest.fixture(scope="module")
def teacher(tiny_checkpoint: Path) -> Teacher:
    return Teacher.load(tiny_checkpoint)


@pytest.fixture(scope="module")
def rows(teacher: Teacher, tiny_log: InteractionLog) -> np.ndarray:
    return period_rows(teacher, tiny_log)


@pytest.fixture(scope="module")
def refitted(teacher: Teacher, tiny_log: InteractionLog, rows: np.ndarray) -> Teacher:
    """A compressor of the logits alone."""
    return refit_compressor(teacher, tiny_log, rows, extraction=("score",), seed=3)


@pytest.mark.parametrize(
    ("config", "keys", "drawn"),
    [
        (tiny_model(), "5a636442939abb1ea7b2c7e56fee146fcf78e879bdbfbb40de1d70e76942338e", [194556410, 1832967017]),
        (EXTRAS, "4753d7d227bd38e17261fac84726cb153c7fc9f5d50049925c889959ddb60e15", [523770071, 1846492839]),
    ],
)
def test_the_default_is_the_model_from_before_there_was_a_choice(
    config: GemConfig, keys: str, drawn: list[int]
) -> None:
    """The names and shapes of its state, and how many random numbers it has drawn, as of that version."""
    model = gem("head", config=config)
    assert torch.randint(1 << 31, (2,)).tolist() == drawn
    named = "\n".join(f"{name} {tuple(value.shape)}" for name, value in model.state_dict().items())
    assert sha256(named.encode()).hexdigest() == keys


# ---- what the compressor reads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("extraction", [(name,) for name in NAMES] + [("score", "hidden-0"), ("joint",)])
def test_every_set_is_a_slice_of_the_joint_one(extraction: tuple[str, ...]) -> None:
    batch = fake_batch(LAYOUT, [0, 3, 16], aggregates=10)
    joint, some = gem("joint"), gem(*extraction)
    tokens = joint.tokens.tokens
    widths = activation_widths(joint.config, set_tokens=tokens, tasks=TASKS)
    assert list(widths) == list(NAMES)
    assert widths["embedding"] == tokens * 16
    assert (widths["hidden-0"], widths["head"], widths["score"]) == (32, 64 + 16, TASKS)
    parts = dict(zip(widths, joint(batch).activations_BE.split(list(widths.values()), dim=1), strict=True))
    expected = torch.cat([parts[name] for name in some.config.extracted], dim=1)
    output = some(batch)
    torch.testing.assert_close(output.activations_BE, expected, rtol=0, atol=0)
    assert some.compressor(output.activations_BE).shape == (3, 64)
    torch.testing.assert_close(parts["score"], output.logits_BK, rtol=0, atol=0)


def test_the_embedding_is_the_row_s_set_tokens_before_the_first_layer() -> None:
    model, batch = gem("embedding"), fake_batch(LAYOUT, [2, 5], aggregates=10)
    torch.testing.assert_close(model(batch).activations_BE, model.tokens(batch)[1].flatten(1), rtol=0, atol=0)


@pytest.mark.parametrize("names", [("joint",), ("hidden-1", "score"), ("embedding",)])
def test_the_model_itself_starts_and_answers_as_by_default(names: tuple[str, ...]) -> None:
    default, other, batch = gem("head"), gem(*names), fake_batch(LAYOUT, [4, 9], aggregates=10)
    ours, theirs = own_weights(default), own_weights(other)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    torch.testing.assert_close(other(batch).logits_BK, default(batch).logits_BK, rtol=0, atol=0)


def test_training_takes_the_same_steps_whatever_is_extracted(tiny_log: InteractionLog, tiny_calendar: Calendar) -> None:
    after = []
    for extraction in (("head",), ("embedding", "hidden-0", "score")):
        recipe = replace(tiny(), model=replace(tiny().model, extraction=extraction))
        options: Any = {"period": "teacher", "base": None, "seed": 5, "device": torch.device("cpu")}
        trainer, _ = prepare(tiny_log, tiny_calendar, recipe, **options)
        before = trainer.model.compressor.encoder[0].weight.clone()  # type: ignore[index,union-attr]
        for step in range(2):
            trainer.step(step)
        assert not torch.equal(before, trainer.model.compressor.encoder[0].weight)  # type: ignore[index,union-attr]
        after.append({name: value.clone() for name, value in own_weights(trainer.model).items()})
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])


def test_no_gradient_reaches_the_model_from_any_activation() -> None:
    model = gem("joint").train()
    output = model(fake_batch(LAYOUT, [4, 9], aggregates=10))
    assert output.logits_BK.requires_grad
    assert not output.activations_BE.requires_grad
    model.auxiliary_loss(output).backward()
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None} == {"compressor"}


class Operations(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def operations(*extraction: str) -> Counter[str]:
    model, batch = gem(*extraction), fake_batch(LAYOUT, [4, 9], aggregates=10)
    with Operations() as seen, torch.no_grad():
        model(batch)
    return seen.counts


def test_what_is_not_asked_for_is_not_computed() -> None:
    head, score, joint = operations("head"), operations("score"), operations("joint")
    assert not (score - head), "the logits are there anyway"
    assert joint["aten.mean"] - head["aten.mean"] == 2 * EXTRAS.layers
    assert head["aten.mean"] == score["aten.mean"]
    assert count_flops(gem("joint"), fake_batch(LAYOUT, [4], aggregates=10)) == count_flops(
        gem("head"), fake_batch(LAYOUT, [4], aggregates=10)
    )


def test_one_forward_pass_gives_soft_labels_and_z(
    refitted: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, forward = [], Gem.forward

    def counted(self: Gem, *args: Any, **options: Any) -> Any:
        passes.append(1)
        return forward(self, *args, **options)

    monkeypatch.setattr(Gem, "forward", counted)
    made = refitted.represent(tiny_log, later_rows[:40])
    assert len(passes) == 1
    with torch.no_grad():
        z = refitted.model.compressor(torch.logit(torch.from_numpy(made.soft)))
    np.testing.assert_allclose(made.z, z.numpy(), atol=1e-4)


# ---- what it costs ----------------------------------------------------------------------------------------------


def test_the_cost_of_z_is_that_of_the_compressor() -> None:
    model, batch = gem("joint", config=tiny_model()), fake_batch(LAYOUT, [16] * 8)
    cost, width = logging_flops(model, batch), len(model.compressor.standardise.mean)
    assert cost.soft == count_flops(model, batch) / 8
    assert cost.z == 2 * (width * 80 + 80 * 64)
    assert cost.ratio == 1 + cost.z / cost.soft


def test_the_cost_stays_bounded_at_large() -> None:
    """All activations of six layers, on as many set tokens as KuaiRand has; nothing is computed, only counted."""
    joint = replace(large_model(), extraction=("joint",))
    assert sum(activation_widths(joint, set_tokens=37, tasks=3).values()) < 25_000
    with FakeTensorMode():
        cost = logging_flops(Gem(LAYOUT, joint).eval(), fake_batch(LAYOUT, [512] * 2))
    assert 1 < cost.ratio < 1.05


# ---- a compressor after the fact --------------------------------------------------------------------------------


def test_the_soft_labels_stay_and_the_space_is_another(
    teacher: Teacher, refitted: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray
) -> None:
    before, after = teacher.represent(tiny_log, later_rows[:99]), refitted.represent(tiny_log, later_rows[:99])
    np.testing.assert_array_equal(after.soft, before.soft)
    assert after.z.std(axis=0).min() > 0
    assert not np.array_equal(after.z, before.z)
    assert (refitted.info.parent, refitted.info.seed) == (teacher.run, 3)
    assert refitted.run != teacher.run
    assert teacher.model.config.extraction == ("head",)


def test_is_deterministic_whatever_the_order_of_rows_and_leaves_the_caller_s_randomness(
    teacher: Teacher, refitted: Teacher, tiny_log: InteractionLog, rows: np.ndarray
) -> None:
    state = torch.get_rng_state()
    again = refit_compressor(teacher, tiny_log, rows[::-1], extraction=("score",), seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert again.run == refitted.run
    assert refit_compressor(teacher, tiny_log, rows[:64], extraction=("score",), seed=4).run != refitted.run


def test_a_refit_of_the_same_activations_comes_near_to_the_compressor_that_trained_beside_the_model(
    teacher: Teacher, tiny_log: InteractionLog, rows: np.ndarray, later_rows: np.ndarray
) -> None:
    again = refit_compressor(teacher, tiny_log, rows, extraction=("head",), seed=0)
    assert again.run != teacher.run
    beside, after = (reconstruction(one, tiny_log, later_rows[:300]) for one in (teacher, again))
    assert tuple(after) == (0, *REPRESENTATION_PREFIXES)
    assert after[64] < after[8] < after[0]
    for prefix in REPRESENTATION_PREFIXES:
        assert after[prefix] / after[0] < 1.1 * beside[prefix] / beside[0]


def test_rows_outside_of_the_training_period_are_refused(
    teacher: Teacher, tiny_log: InteractionLog, rows: np.ndarray, later_rows: np.ndarray
) -> None:
    for wrong, said in ((np.append(rows, later_rows[0]), f"1 of {len(rows) + 1} rows lie outside"), (rows[:0], "rows")):
        with pytest.raises(InputError, match=said):
            refit_compressor(teacher, tiny_log, wrong, extraction=("score",), seed=0)
    with pytest.raises(InputError, match="hidden-1"):
        refit_compressor(teacher, tiny_log, rows, extraction=("hidden-2",), seed=0)
    with pytest.raises(InputError, match="trained on schema"):
        refit_compressor(teacher, small_log([(0, 1000)]), np.array([0]), extraction=("score",), seed=0)


def test_one_row_is_enough(teacher: Teacher, tiny_log: InteractionLog, rows: np.ndarray) -> None:
    one = refit_compressor(teacher, tiny_log, rows[:1], extraction=("joint",), seed=0)
    assert np.isfinite(one.represent(tiny_log, rows[:3]).z).all()
    assert logging_cost(one, tiny_log, rows[:1]).ratio > 1
    assert np.isnan(list(reconstruction(one, tiny_log, rows[:0]).values())).all()


def test_written_it_is_a_checkpoint_as_any_other(
    refitted: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray, tmp_path: Path
) -> None:
    assert refitted.write(tmp_path / "gem", {}).run == refitted.run == read_info(tmp_path / "gem").run
    loaded = Teacher.load(tmp_path / "gem")
    np.testing.assert_array_equal(
        loaded.represent(tiny_log, later_rows[:99]).z, refitted.represent(tiny_log, later_rows[:99]).z
    )


def test_a_checkpoint_from_before_the_choice_still_loads(
    teacher: Teacher, tiny_log: InteractionLog, later_rows: np.ndarray, tmp_path: Path
) -> None:
    written = teacher.write(tmp_path / "gem", {})
    assert written.run == teacher.run
    info = json.loads((tmp_path / "gem" / INFO).read_text())
    for name in ("extraction", "aligned"):
        del info["recipe"]["model"][name]
    (tmp_path / "gem" / INFO).write_text(json.dumps(info))
    loaded = Teacher.load(tmp_path / "gem")
    assert loaded.info.recipe == teacher.info.recipe
    expected, found = (one.represent(tiny_log, later_rows[:99]) for one in (teacher, loaded))
    np.testing.assert_array_equal(found.z, expected.z)


def test_the_command(tiny_checkpoint: Path, tiny_log_dir: Path, teacher: Teacher, tmp_path: Path) -> None:
    start = ["foundation.extract", "--checkpoint", str(tiny_checkpoint), "--log", str(tiny_log_dir)]
    good, wrong = str(tmp_path / "good"), str(tmp_path / "wrong")
    done = run_commands(
        [
            [*start, "--layers", "score, hidden-0", "--out", good],
            [*start, "--layers", "score", "--out", good],
            [*start, "--layers", "hidden-7", "--out", wrong],
            [*start, "--layers", "", "--out", wrong],
        ]
    )
    assert [one.code for one in done] == [0, 2, 2, 2], [one.stderr for one in done]
    assert "choose another --out" in done[1].stderr
    assert all(name in done[2].stderr for name in (*NAMES, "joint"))
    assert not Path(wrong).exists()
    result = json.loads(done[0].stdout.splitlines()[-1])
    made = read_info(tmp_path / "good")
    assert (result["run"], result["parent"]) == (made.run, teacher.run)
    assert result["extraction"] == ["hidden-0", "score"]
    assert result["activations"] == 32 + 3
    assert set(result["reconstruction"]) == {"0", "8", "16", "32", "64"}
    assert result["flops"]["ratio"] > 1
    assert made.trained_until_ms == teacher.trained_until_ms
    train(tiny_log_dir, tmp_path / "on", period="student", parent=tmp_path / "good")  # the model's moments are kept
    assert read_info(tmp_path / "on").recipe.model.extracted == ("hidden-0", "score")
