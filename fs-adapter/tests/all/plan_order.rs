//! Selections and orders.
//!
//! long: tables of cases, one row each.

use crate::build::{Folder, open, refused, safetensors_of};
use fs_adapter::plan::{Order, Plan, Selection};
use fs_adapter::{ErrorKind, Model};

fn model_of(names: &[&str]) -> Model {
    let folder = Folder::new();
    open(folder.write("model.safetensors", safetensors_of(names))).expect("valid")
}

fn planned(model: &Model, patterns: &[&str], order: Order) -> Vec<String> {
    let selection = Selection::new(patterns).expect("globs");
    let plan = Plan::new(model, &selection, order).expect("a plan");
    assert_eq!(plan.payload_bytes, plan.order.len() as u64);
    plan.order
        .iter()
        .map(|&index| model.tensors()[index].name.clone())
        .collect()
}

#[test]
fn layer_order_follows_a_forward_pass() {
    for (what, file_order, layer_order) in [
        (
            "llama",
            vec![
                "lm_head.weight",
                "model.embed_tokens.weight",
                "model.layers.0.b",
                "model.layers.0.a",
                "model.layers.10.a",
                "model.layers.2.a",
                "model.norm.weight",
            ],
            vec![
                "model.embed_tokens.weight",
                "model.layers.0.b",
                "model.layers.0.a",
                "model.layers.2.a",
                "model.layers.10.a",
                "lm_head.weight",
                "model.norm.weight",
            ],
        ),
        (
            "gguf",
            vec![
                "output_norm.weight",
                "blk.1.x",
                "blk.0.x",
                "output.weight",
                "token_embd.weight",
                "rope_freqs.weight",
            ],
            vec![
                "token_embd.weight",
                "rope_freqs.weight",
                "blk.0.x",
                "blk.1.x",
                "output_norm.weight",
                "output.weight",
            ],
        ),
        (
            "gpt2",
            vec!["h.1.a", "h.0.a", "ln_f.bias", "wpe.weight", "wte.weight"],
            vec!["wpe.weight", "wte.weight", "h.0.a", "h.1.a", "ln_f.bias"],
        ),
        (
            "bert",
            vec![
                "encoder.layer.3.output.dense.weight",
                "pooler.dense.weight",
                "encoder.layer.0.x",
                "embeddings.LayerNorm.bias",
            ],
            vec![
                "embeddings.LayerNorm.bias",
                "encoder.layer.0.x",
                "encoder.layer.3.output.dense.weight",
                "pooler.dense.weight",
            ],
        ),
        (
            "experts",
            vec![
                "model.layers.1.mlp.experts.0.w",
                "model.layers.0.mlp.experts.11.w",
                "model.layers.0.mlp.experts.2.w",
            ],
            vec![
                "model.layers.0.mlp.experts.11.w",
                "model.layers.0.mlp.experts.2.w",
                "model.layers.1.mlp.experts.0.w",
            ],
        ),
        (
            "encoder and decoder",
            vec![
                "decoder.block.0.x",
                "encoder.block.1.x",
                "encoder.block.0.x",
                "shared.weight",
            ],
            vec![
                "shared.weight",
                "encoder.block.0.x",
                "encoder.block.1.x",
                "decoder.block.0.x",
            ],
        ),
        ("no layers", vec!["b", "a"], vec!["b", "a"]),
        ("nothing", vec![], vec![]),
    ] {
        let model = model_of(&file_order);
        assert_eq!(planned(&model, &[], Order::File), file_order, "{what}");
        assert_eq!(planned(&model, &[], Order::Layer), layer_order, "{what}");
    }
}

#[test]
fn patterns_match_whole_names() {
    let model = model_of(&[
        "model.layers.0.q",
        "model.layers.1.q",
        "model.layers.10.q",
        "head",
    ]);
    for (patterns, expected) in [
        (vec!["head"], vec!["head"]),
        (
            vec!["*.q"],
            vec!["model.layers.0.q", "model.layers.1.q", "model.layers.10.q"],
        ),
        (
            vec!["model.layers.?.q"],
            vec!["model.layers.0.q", "model.layers.1.q"],
        ),
        (vec!["{head,*.10.q}"], vec!["model.layers.10.q", "head"]),
        (
            vec!["head", "*.0.q", "head*"],
            vec!["model.layers.0.q", "head"],
        ),
    ] {
        assert_eq!(
            planned(&model, &patterns, Order::File),
            expected,
            "{patterns:?}"
        );
    }
}

#[test]
fn patterns_that_match_nothing_are_named() {
    let model = model_of(&["model.layers.0.q_proj", "lm_head.weight"]);
    let plan = |patterns: &[&str]| {
        Plan::new(
            &model,
            &Selection::new(patterns).expect("globs"),
            Order::File,
        )
    };
    refused(
        "typo",
        plan(&["lm_haed*"]),
        ErrorKind::NoMatch,
        "close names: \"lm_head.weight\"",
    );
    refused(
        "part",
        plan(&["q_proj"]),
        ErrorKind::NoMatch,
        "q_proj (close",
    );
    refused(
        "one of two",
        plan(&["*", "nothing"]),
        ErrorKind::NoMatch,
        "matches nothing",
    );
    let empty = model_of(&[]);
    let result = Plan::new(&empty, &Selection::new(["*"]).expect("glob"), Order::File);
    refused("no tensors", result, ErrorKind::NoMatch, "no tensors");
    refused(
        "no glob",
        Selection::new(["a[", "b"]),
        ErrorKind::InvalidArgument,
        "pattern",
    );
}
