//! What regions are made of the kernel's words. The rest is shown in a virtual machine.

use super::super::capability::tests::{BAR, sparse};
use super::*;

fn answer(bytes: &[u8], flags: u32, size: u64) -> sys::Answer<vfio_region_info> {
    sys::Answer {
        info: vfio_region_info {
            argsz: u32::try_from(bytes.len()).expect("small"),
            flags,
            index: 0,
            cap_offset: 32,
            size,
            offset: 1 << 40,
        },
        bytes: bytes.to_vec(),
    }
}

const ALL: u32 = VFIO_REGION_INFO_FLAG_READ
    | VFIO_REGION_INFO_FLAG_WRITE
    | VFIO_REGION_INFO_FLAG_MMAP
    | VFIO_REGION_INFO_FLAG_CAPS;

#[test]
fn a_bar_without_holes_is_mapped_whole() {
    let region = Region::parse(&answer(&BAR, ALL, 0x4000)).expect("as a kernel says it");
    assert_eq!(region.areas, [(0, 0x4000)]);
    assert_eq!((region.len_bytes, region.file_offset), (0x4000, 1 << 40));
    let plain = ALL & !VFIO_REGION_INFO_FLAG_CAPS;
    let region = Region::parse(&answer(&[], plain, 0x4000)).expect("without a chain");
    assert_eq!(region.areas, [(0, 0x4000)]);
}

#[test]
fn holes_are_left_out_and_the_longest_stretch_is_found() {
    let bytes = sparse(&[(0, 0x1000), (0x2000, 0x2000), (0x6000, 0x2000), (0x9000, 0)]);
    let region = Region::parse(&answer(&bytes, ALL, 0x1_0000)).expect("an older kernel's");
    assert_eq!(
        region.areas,
        [(0, 0x1000), (0x2000, 0x2000), (0x6000, 0x2000)]
    );
    assert_eq!(region.longest_area(), Some((0x2000, 0x2000)));
}

#[test]
fn what_cannot_be_mapped_has_no_areas() {
    for missing in [
        VFIO_REGION_INFO_FLAG_MMAP,
        VFIO_REGION_INFO_FLAG_READ,
        VFIO_REGION_INFO_FLAG_WRITE,
    ] {
        let region = Region::parse(&answer(&BAR, ALL & !missing, 0x4000)).expect("legal");
        assert_eq!(region.longest_area(), None);
    }
    // Less than a page, or beginning inside of one: the rest of the page is another's.
    let region = Region::parse(&answer(&BAR, ALL, 0x100)).expect("legal");
    assert_eq!(region.longest_area(), None);
    let bytes = sparse(&[(0x800, 0x1000), (0x2000, 0x1800)]);
    let region = Region::parse(&answer(&bytes, ALL, 0x4000)).expect("legal");
    assert_eq!(region.areas, [(0x2000, 0x1000)]);
}

#[test]
fn areas_beyond_the_region_are_refused() {
    for areas in [[(0, 0x5000)], [(0x4000, 0x1000)], [(u64::MAX, 2)]] {
        let result = Region::parse(&answer(&sparse(&areas), ALL, 0x4000));
        assert_eq!(result, Err(capability::Malformed));
    }
}
