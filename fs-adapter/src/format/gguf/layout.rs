//! Where GGUF tensors may lie: inside the file, apart from each other, nothing after them.
//! Knows offsets and lengths only.

use super::{Entry, FETCH_AGAIN};
use crate::error::{Error, ErrorKind, Result, quoted};

/// Turns offsets from the payload's start into offsets from the file's start, and checks them.
pub(super) fn check(
    mut tensors: Vec<Entry>,
    header_end: u64,
    payload_offset: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<Entry>> {
    for tensor in &mut tensors {
        let relative = tensor.offset;
        let offset = relative.checked_add(payload_offset);
        match offset.filter(|offset| offset.checked_add(tensor.len).is_some()) {
            Some(offset) => tensor.offset = offset,
            None => {
                return Err(Error::new(
                    ErrorKind::OutOfRange,
                    format!("the data would begin at {relative}, past any file's end"),
                    FETCH_AGAIN,
                )
                .at_tensor(&tensor.name));
            }
        }
    }
    let mut order: Vec<&Entry> = tensors.iter().collect();
    order.sort_by_key(|tensor| (tensor.offset, tensor.len));
    check_duplicate_names(&tensors)?;

    // Without tensors the file ends with its header, padded or not.
    let mut end = if tensors.is_empty() {
        header_end
    } else {
        payload_offset
    };
    let mut contiguous = true;
    let mut previous: Option<&Entry> = None;
    for &tensor in &order {
        if tensor.offset < end {
            let name = previous.map_or("", |entry| entry.name.as_str());
            return Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "overlaps tensor {} by {} bytes",
                    quoted(name),
                    end - tensor.offset
                ),
                FETCH_AGAIN,
            )
            .at_tensor(&tensor.name)
            .at_offset(tensor.offset));
        }
        contiguous &= end.checked_next_multiple_of(alignment) == Some(tensor.offset);
        end = tensor.offset + tensor.len;
        if end > file_len {
            return Err(beyond(tensor, end, file_len, contiguous));
        }
        previous = Some(tensor);
    }
    let padded_end = end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    if file_len > padded_end {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!(
                "{} bytes follow the last tensor and its padding",
                file_len - padded_end
            ),
            "cut the file to its tensors, or fetch it again",
        )
        .at_offset(padded_end));
    }
    Ok(tensors)
}

/// A file whose tensors lie back to back up to the one that is cut was cut; any other points
/// outside.
fn beyond(tensor: &Entry, end: u64, file_len: u64, contiguous: bool) -> Error {
    let kind = if contiguous {
        ErrorKind::Truncated
    } else {
        ErrorKind::OutOfRange
    };
    Error::new(
        kind,
        format!("the tensor ends at byte {end}, but the file has {file_len}"),
        FETCH_AGAIN,
    )
    .at_tensor(&tensor.name)
    .at_offset(tensor.offset)
}

fn check_duplicate_names(tensors: &[Entry]) -> Result<()> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(
            Error::new(ErrorKind::Duplicate, "the name occurs twice", FETCH_AGAIN)
                .at_tensor(pair[0]),
        ),
        None => Ok(()),
    }
}
