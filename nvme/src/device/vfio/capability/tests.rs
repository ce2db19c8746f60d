//! Chains as a kernel gave them (Linux 7.2, Intel's IOMMU with 39 bits as QEMU has it), and
//! chains that lie.

use super::*;

/// `VFIO_IOMMU_GET_INFO`: migration, then mappings left, then address ranges.
pub(in super::super) const IOMMU: [u8; 0x78] = [
    0x78, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x10, 0x20, 0x40, 0x00, 0x00, 0x00, 0x00,
    0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x01, 0x00, 0x38, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x01, 0x00, 0x48, 0x00, 0x00, 0x00,
    0xfd, 0xff, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xff, 0xdf, 0xfe, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0xfe, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xff, 0xff, 0xff, 0x7f, 0x00, 0x00, 0x00,
];
const IOMMU_HEAD_BYTES: usize = 24;

/// `VFIO_DEVICE_GET_REGION_INFO` of an NVMe controller's BAR 0: all of it may be mapped, the
/// interrupt table too.
pub(in super::super) const BAR: [u8; 0x28] = [
    0x28, 0x00, 0x00, 0x00, 0x0f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00,
    0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x03, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
];
const REGION_HEAD_BYTES: usize = 32;

/// The same BAR as kernels before 4.16 describe it: without the page of the interrupt table.
pub(in super::super) fn sparse(areas: &[(u64, u64)]) -> Vec<u8> {
    let mut answer = BAR[..REGION_HEAD_BYTES].to_vec();
    answer.extend([1, 0, 1, 0, 0, 0, 0, 0]);
    answer.extend(u32::try_from(areas.len()).expect("few").to_ne_bytes());
    answer.extend([0; 4]);
    for (offset, len_bytes) in areas {
        answer.extend(offset.to_ne_bytes());
        answer.extend(len_bytes.to_ne_bytes());
    }
    answer
}

#[test]
fn what_a_kernel_says_of_its_iommu() {
    let ranges = iova_ranges(&IOMMU, 24, IOMMU_HEAD_BYTES);
    let expected = vec![0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];
    assert_eq!(ranges, Ok(Some(expected)));
    assert_eq!(mappings_left(&IOMMU, 24, IOMMU_HEAD_BYTES), Ok(Some(65533)));
    // Without a chain.
    assert_eq!(iova_ranges(&IOMMU, 0, IOMMU_HEAD_BYTES), Ok(None));
    assert_eq!(mappings_left(&[], 0, IOMMU_HEAD_BYTES), Ok(None));
}

#[test]
fn what_a_kernel_says_of_a_bar() {
    assert_eq!(sparse_areas(&BAR, 32, REGION_HEAD_BYTES), Ok(None));
    let areas = vec![(0, 0x2000), (0x3000, 0x1000)];
    let answer = sparse(&areas);
    assert_eq!(
        sparse_areas(&answer, 32, REGION_HEAD_BYTES),
        Ok(Some(areas))
    );
}

fn all(answer: &[u8], first: u32) -> [bool; 3] {
    [
        iova_ranges(answer, first, IOMMU_HEAD_BYTES).is_err(),
        mappings_left(answer, first, IOMMU_HEAD_BYTES).is_err(),
        sparse_areas(answer, first, IOMMU_HEAD_BYTES).is_err(),
    ]
}

#[test]
fn chains_that_lie_are_refused() {
    // Into the answer's own structure, and beyond its end.
    assert_eq!(all(&IOMMU, 8), [true; 3]);
    assert_eq!(all(&IOMMU, 0x78), [true; 3]);
    assert_eq!(all(&IOMMU, u32::MAX), [true; 3]);
    // A loop, behind which the last one is never reached.
    let mut answer = IOMMU;
    answer[0x3c] = 0x18;
    assert_eq!(all(&answer, 24), [true, false, true]);
    // More ranges, or (the number is the same) areas than bytes.
    let mut answer = IOMMU;
    answer[0x50..0x54].fill(0xff);
    assert_eq!(all(&answer, 24), [true, false, true]);
    answer[0x50..0x54].copy_from_slice(&[3, 0, 0, 0]);
    assert_eq!(all(&answer, 24), [true, false, true]);
}

proptest::proptest! {
    #[test]
    fn nothing_makes_it_panic(
        changes in proptest::collection::vec((0..IOMMU.len(), proptest::prelude::any::<u8>()), 0..8),
        len in 0..=IOMMU.len(),
        first in 0_u32..130,
    ) {
        let mut answer = IOMMU;
        for (at, byte) in changes {
            answer[at] = byte;
        }
        let _errors = all(&answer[..len], first);
    }
}
