"""A tiny student as ONNX with its artifact, and the catalogue that goes with it."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pyarrow as pa
from onnx import TensorProto, helper, numpy_helper

from contracts.features import AdTable, InputSpec
from contracts.manifest import Manifest, tensor_of, write_manifest
from contracts.schema import Feature, FeatureSchema, Task

SPACE, GENERATION = "gem-3f9a1c-d4-int8", "g000001"
LENGTH, DIM = 5, 4
NOW_MS = 1_700_000_000_000
ADS = tuple(f"a{number}" for number in range(1200))
SCHEMA = FeatureSchema(
    name="test",
    surfaces=("other", "feed", "reels"),
    tasks=(Task("click"), Task("conversion", "click", 86_400_000), Task("install", "click")),
    features=(
        Feature("category", "ad", cardinality=7),
        Feature("price", "ad", "float"),
        Feature("device", "context", cardinality=4),
        Feature("battery", "context", "float"),
        Feature("age", "user", cardinality=10, teacher_only=True),
    ),
    user_buckets=1000,
    ad_buckets=5000,
)
SPEC = InputSpec(SCHEMA, LENGTH, DIM)
OBJECTIVES = ("click", "conversion", "install")


def build_graph(spec: InputSpec, *, seed: int = 0, nan_for_bucket: int | None = None) -> onnx.ModelProto:
    """probabilities = sigmoid(ad row + user row): every input matters, and the user side is computed once.

    nan_for_bucket: the ad embedding row that gives NaN.
    """
    rng = np.random.default_rng(seed)
    tasks = len(spec.schema.tasks)
    shapes = {tensor.name: tensor for tensor in spec.tensors()}
    kinds = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}
    inputs = [helper.make_tensor_value_info(t.name, kinds[t.dtype], list(t.shape)) for t in spec.tensors()]
    initializers, nodes, terms = [], [], []

    def term(name: str, source: str, width: int) -> None:
        """Adds source [., width] times random weights to the logits."""
        weights = (rng.normal(size=(width, tasks)) * 0.3 / width).astype(np.float32)
        initializers.append(numpy_helper.from_array(weights, f"w_{name}"))
        nodes.append(helper.make_node("MatMul", [source, f"w_{name}"], [f"t_{name}"]))
        terms.append(f"t_{name}")

    table = (rng.normal(size=(spec.schema.ad_buckets, tasks)) * 0.5).astype(np.float32)
    if nan_for_bucket is not None:
        table[nan_for_bucket] = np.nan
    initializers += [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.int64(0), "zero")]
    nodes += [
        helper.make_node("Gather", ["ad_cat", "zero"], ["ad_bucket"], axis=1),
        helper.make_node("Gather", ["table", "ad_bucket"], ["t_ad"], axis=0),
        helper.make_node("Cast", ["user_cat"], ["user_cat_f"], to=TensorProto.FLOAT),
        helper.make_node("Sin", ["user_cat_f"], ["user_cat_s"]),
    ]
    terms.append("t_ad")
    term("user_cat", "user_cat_s", int(shapes["user_cat"].shape[1]))
    term("user_num", "user_num", int(shapes["user_num"].shape[1]))
    term("ad_num", "ad_num", int(shapes["ad_num"].shape[1]))
    if spec.history_length:
        initializers.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"))
        initializers.append(numpy_helper.from_array(np.float32(1), "one"))
        nodes += [
            helper.make_node("Add", ["history_age_s", "one"], ["age_1"]),
            helper.make_node("Log", ["age_1"], ["log_age"]),
            helper.make_node("Mul", ["log_age", "history_mask"], ["age_m"]),
            helper.make_node("ReduceSum", ["history_z", "axis"], ["z_sum"], keepdims=0),
            helper.make_node("Add", ["history_stats", "one"], ["stats_1"]),
            helper.make_node("Log", ["stats_1"], ["log_stats"]),
        ]
        term("history", "z_sum", spec.dim)
        term("age", "age_m", spec.history_length)
        term("stats", "log_stats", 2)
    nodes += [helper.make_node("Sum", terms, ["logits"]), helper.make_node("Sigmoid", ["logits"], ["probabilities"])]
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", tasks])
    graph = helper.make_graph(nodes, "student", inputs, [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def random_inputs(spec: InputSpec, rows: int, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Valid inputs of a request with `rows` candidates."""
    rng = np.random.default_rng(seed)
    sizes = {"user_cat": spec.user_cat_sizes(), "ad_cat": spec.ad_cat_sizes()}
    inputs = {}
    for tensor in spec.tensors():
        shape = [{"B": 1, "N": rows}.get(size, size) for size in tensor.shape]
        if tensor.dtype == "int64":
            inputs[tensor.name] = rng.integers(0, sizes[tensor.name], size=shape)
        else:
            inputs[tensor.name] = rng.random(shape).astype(np.float32)
    return inputs


def write_artifact(
    root: Path,
    *,
    name: str = "student",
    version: str = "1",
    surfaces: tuple[str, ...] = SCHEMA.surfaces,
    created_at: str = "2026-01-01T00:00:00+00:00",
    spec: InputSpec = SPEC,
    graph: onnx.ModelProto | None = None,
) -> Path:
    """`<root>/<name>/<version>/` as `student_models.export` writes it."""
    folder = root / name / version
    folder.mkdir(parents=True)
    content = (graph or build_graph(spec)).SerializeToString()
    (folder / "model.onnx").write_bytes(content)
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    cases = []
    for rows in (1, 3):
        inputs = random_inputs(spec, rows, seed=rows)
        (probabilities,) = session.run(["probabilities"], inputs)
        raw = {
            n: {"dtype": str(a.dtype), "shape": list(a.shape), "data": a.ravel().tolist()} for n, a in inputs.items()
        }
        cases.append({"inputs": raw, "probabilities": probabilities.tolist()})
    (folder / "golden.json").write_text(json.dumps({"cases": cases}))
    tasks = [task.name for task in spec.schema.tasks]
    manifest = Manifest(
        name=name,
        version=version,
        created_at=created_at,
        surfaces=list(surfaces),
        tasks=tasks,
        space=SPACE,
        history_length=spec.history_length,
        dim=spec.dim,
        inputs=[tensor_of(tensor) for tensor in spec.tensors()],
        outputs=[{"name": "probabilities", "dtype": "float32", "shape": ["N", len(tasks)]}],
        feature_schema=spec.schema.to_json(),
        schema_fingerprint=spec.schema.fingerprint(),
        opset=18,
    )
    write_manifest(folder, manifest)
    return folder


def catalogue_table(ad_ids: tuple[str, ...] = ADS, *, schema: FeatureSchema = SCHEMA) -> pa.Table:
    """The catalogue of the test schema: objectives take turns, bids from 0.5 on."""
    n = np.arange(len(ad_ids))
    columns = {
        "ad_id": pa.array(ad_ids),
        "campaign": pa.array([f"c{i // 10}" for i in n]),
        "objective": pa.array([OBJECTIVES[i % 3] for i in n]),
        "default_bid": pa.array((0.5 + n % 5).astype(np.float32)),
        "updated_ms": pa.array(np.full(len(n), NOW_MS - 1000)),
        "category": pa.array((n % 7).astype(np.int32)),
        "price": pa.array(np.linspace(-1, 1, len(n)).astype(np.float32)),
    }
    return pa.table(columns).replace_schema_metadata({"gem_schema_fingerprint": schema.fingerprint()})


def ad_table(ad_ids: tuple[str, ...] = ADS) -> AdTable:
    """Model inputs of the catalogue's ads, built without serving."""
    table = catalogue_table(ad_ids)
    return AdTable.build(SCHEMA, ad_ids, {name: table[name].to_numpy() for name in ("category", "price")})


def write_catalogue(path: Path, table: pa.Table | None = None) -> Path:
    """An Arrow IPC file, put in place by a rename."""
    table = table if table is not None else catalogue_table()
    partial = path.with_suffix(".tmp")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    partial.rename(path)
    return path
