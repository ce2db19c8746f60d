//! SGL descriptors: a transfer that is one piece on the bus needs a single one, which lies in
//! the command itself. Base 4.1.2.

use nvme_sys::sgl::{DATA_BLOCK, SglDescriptor};

use crate::dma::DmaRun;

/// The descriptor of the first `len_bytes` of a run; `None` if it has not so many, or more than
/// a descriptor can say.
#[must_use]
pub fn data_block(run: DmaRun, len_bytes: u64) -> Option<SglDescriptor> {
    let len = u32::try_from(len_bytes).ok().filter(|&len| len > 0)?;
    (len_bytes <= run.len_bytes).then(|| SglDescriptor {
        address: run.start.0.into(),
        len_bytes: len.into(),
        reserved: [0; 3],
        kind: DATA_BLOCK,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::Iova;

    #[test]
    fn one_piece_is_one_descriptor() {
        let run = DmaRun {
            start: Iova(0x1234),
            len_bytes: 0x1_0000_0000,
        };
        let made = data_block(run, 512).expect("inside");
        assert_eq!(
            (made.address.get(), made.len_bytes.get(), made.kind),
            (0x1234, 512, 0)
        );
        assert!(data_block(run, u32::MAX.into()).is_some());
        for len in [0, 0x1_0000_0000, 0x1_0000_0001] {
            assert_eq!(data_block(run, len), None);
        }
    }
}
