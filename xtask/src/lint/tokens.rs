//! Rust source as tokens with line numbers: enough for the rules, inside macros too.
//!
//! Comments and strings are not tokens, so a word in them never counts.

use proc_macro2::{TokenStream, TokenTree};

/// The file's tokens, or what keeps it from being read.
pub(crate) fn parse(text: &str) -> Result<TokenStream, String> {
    text.parse()
        .map_err(|error| format!("cannot be read as Rust: {error}"))
}

/// Calls `visit` with every token of every level: the level's tokens, and the token's index.
pub(crate) fn walk(stream: TokenStream, visit: &mut impl FnMut(&[TokenTree], usize)) {
    let level: Vec<TokenTree> = stream.into_iter().collect();
    for index in 0..level.len() {
        visit(&level, index);
        if let TokenTree::Group(group) = &level[index] {
            walk(group.stream(), visit);
        }
    }
}

/// Whether the token is this word.
pub(crate) fn is_word(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == word)
}

/// Whether the token is this punctuation mark.
pub(crate) fn is_mark(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

/// The line a token starts on.
pub(crate) fn line(token: &TokenTree) -> usize {
    token.span().start().line
}

/// The contents of a plain string literal.
pub(crate) fn string(token: Option<&TokenTree>) -> Option<String> {
    let TokenTree::Literal(literal) = token? else {
        return None;
    };
    let shown = literal.to_string();
    shown
        .strip_prefix('"')?
        .strip_suffix('"')
        .map(str::to_string)
}
