//! Shard names: `PREFIX-00001-of-00004.EXT`. Knows names, opens nothing.

/// A name taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardName<'a> {
    pub(crate) prefix: &'a str,
    /// Place in the set, from one.
    pub(crate) number: u64,
    pub(crate) count: u64,
    number_width: usize,
    count_text: &'a str,
    extension: &'a str,
}

impl<'a> ShardName<'a> {
    /// Takes `name` apart; `extension` comes with its dot.
    pub(crate) fn parse(name: &'a str, extension: &'a str) -> Option<Self> {
        let (rest, count_text) = name.strip_suffix(extension)?.rsplit_once("-of-")?;
        let (prefix, number_text) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u64>().ok()).flatten()
        };
        Some(Self {
            prefix,
            number: digits(number_text)?,
            count: digits(count_text)?,
            number_width: number_text.len(),
            count_text,
            extension,
        })
    }

    /// The name of part `number` of the same set.
    pub(crate) fn part(&self, number: u64) -> String {
        let Self {
            prefix,
            number_width,
            count_text,
            extension,
            ..
        } = *self;
        format!("{prefix}-{number:0number_width$}-of-{count_text}{extension}")
    }

    /// What all parts of a set have in common.
    pub(crate) fn set(&self) -> (&'a str, &'a str, usize) {
        (self.prefix, self.count_text, self.number_width)
    }
}
