//! The order in which a forward pass meets tensors, guessed from their names alone. A wrong
//! guess costs waiting, never correctness.

use crate::tensor_table::{TensorIndex, TensorTable};
use std::collections::HashMap;

/// Words for stacks that run first, and for those that run last.
const EARLY_STACKS: [&str; 7] = [
    "encoder",
    "vision",
    "visual",
    "audio",
    "image",
    "text_model",
    "clip",
];
const LATE_STACKS: [&str; 3] = ["decoder", "mtp", "nextn"];

/// Words for tensors outside the layers that are needed last.
const TAIL: [&str; 13] = [
    "lm_head",
    "output",
    "output_norm",
    "norm",
    "norm_f",
    "ln_f",
    "final_layernorm",
    "final_layer_norm",
    "final_norm",
    "head",
    "pooler",
    "classifier",
    "score",
];

/// Words that make a tensor an early one whatever else its name says.
const EARLY: [&str; 6] = ["embed", "embd", "wte", "wpe", "rope", "patch"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Before,
    Layers,
    After,
}

/// Sorts `selected`, which is in file order, into layer order; stable within a layer.
pub(super) fn layer_order(table: &TensorTable, selected: &mut [TensorIndex]) {
    let mut stacks: HashMap<&str, usize> = HashMap::new();
    for &index in selected.iter() {
        if let Some((stack, _)) = layer_of(&table[index].name) {
            let next = stacks.len();
            stacks.entry(stack).or_insert(next);
        }
    }
    selected.sort_by_cached_key(|&index| {
        let name = table[index].name.as_str();
        match layer_of(name) {
            Some((stack, layer)) => {
                let seen = stacks.get(stack).copied().unwrap_or(0);
                (Phase::Layers, stack_rank(stack), seen, layer, index)
            }
            None if is_tail(name) => (Phase::After, 0, 0, 0, index),
            None => (Phase::Before, 0, 0, 0, index),
        }
    });
}

/// The first part of the name that is only digits, and the text before it.
fn layer_of(name: &str) -> Option<(&str, u64)> {
    let mut start = 0;
    for part in name.split('.') {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(layer) = digits.then(|| part.parse().ok()).flatten() {
            return Some((&name[..start], layer));
        }
        start += part.len() + 1;
    }
    None
}

fn stack_rank(stack: &str) -> u8 {
    let has = |words: &[&str]| words.iter().any(|word| stack.contains(word));
    if has(&LATE_STACKS) && !has(&EARLY_STACKS) {
        2
    } else if has(&EARLY_STACKS) {
        0
    } else {
        1
    }
}

fn is_tail(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    if EARLY.iter().any(|word| lower.contains(word)) {
        return false;
    }
    lower.split('.').any(|part| TAIL.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::{is_tail, layer_of, stack_rank};

    #[test]
    fn the_layer_is_the_first_number_of_a_name() {
        for (name, expected) in [
            (
                "model.layers.12.mlp.experts.7.w1",
                Some(("model.layers.", 12)),
            ),
            ("blk.0.attn_q.weight", Some(("blk.", 0))),
            ("h.3.ln_1.bias", Some(("h.", 3))),
            (
                "encoder.layer.10.output.dense.weight",
                Some(("encoder.layer.", 10)),
            ),
            ("0.weight", Some(("", 0))),
            ("conv1.weight", None),
            ("", None),
            ("a..b", None),
            ("x.99999999999999999999999.y", None),
        ] {
            assert_eq!(layer_of(name), expected, "{name}");
        }
    }

    #[test]
    fn heads_and_final_norms_come_last() {
        for name in [
            "lm_head.weight",
            "output.weight",
            "output_norm.weight",
            "model.norm.weight",
        ] {
            assert!(is_tail(name), "{name}");
        }
        for name in [
            "token_embd.weight",
            "rope_freqs.weight",
            "model.embed_tokens.weight",
            "embeddings.LayerNorm.weight",
            "token_embd_norm.weight",
        ] {
            assert!(!is_tail(name), "{name}");
        }
    }

    #[test]
    fn what_feeds_a_stack_comes_before_it() {
        assert!(stack_rank("encoder.block.") < stack_rank("decoder.block."));
        assert!(stack_rank("vision_tower.layers.") < stack_rank("model.layers."));
        assert!(stack_rank("model.layers.") < stack_rank("mtp.layers."));
    }
}
