//! What a container makes of the kernel's words. That it maps is shown in a virtual machine.

use super::super::capability::tests::IOMMU;
use super::*;

fn answer(flags: u32) -> sys::Answer<vfio_iommu_type1_info> {
    sys::Answer {
        info: vfio_iommu_type1_info {
            argsz: 0x78,
            flags,
            iova_pgsizes: 0x4020_1000,
            cap_offset: 24,
            pad: 0,
        },
        bytes: IOMMU.to_vec(),
    }
}

#[test]
fn the_iommu_is_taken_at_its_word() {
    let info = Info::parse(&answer(3)).expect("as a kernel says it");
    assert_eq!(info.valid, [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
    assert_eq!(info.page_sizes, 0x4020_1000);
    assert_eq!(info.mappings_left, Some(65533));
}

#[test]
fn what_old_kernels_do_not_say_is_taken_small() {
    let info = Info::parse(&answer(0)).expect("as an old kernel says it");
    assert_eq!(info.valid, [UNSAID]);
    assert_eq!(info.page_sizes, PAGE_BYTES);
    assert_eq!(info.mappings_left, None);
}

#[test]
fn addresses_follow_the_largest_page_that_fits() {
    const SIZES: u64 = 0x4020_1000;
    let cases = [
        (0x1000, 0x1000),
        (0x1f_f000, 0x1000),
        (0x20_0000, 0x20_0000),
        (0x3fff_f000, 0x20_0000),
        (0x4000_0000, 0x4000_0000),
        (u64::MAX, 0x4000_0000),
    ];
    for (len_bytes, page_bytes) in cases {
        assert_eq!(largest_page(SIZES, len_bytes), page_bytes, "{len_bytes:#x}");
    }
    assert_eq!(smallest_page(SIZES), 0x1000);
    // No size said, or all below the host's own page.
    assert_eq!(smallest_page(0), PAGE_BYTES);
    assert_eq!(largest_page(0x200, 0x1000), PAGE_BYTES);
}

#[test]
fn each_errno_of_a_mapping_has_its_kind_and_remedy() {
    let cases = [
        (libc::ENOMEM, ErrorKind::NoSpace, "ulimit -l"),
        (libc::ENOSPC, ErrorKind::NoSpace, "dma_entry_limit"),
        (libc::EFAULT, ErrorKind::Unsupported, "not writable"),
        (libc::EOPNOTSUPP, ErrorKind::Unsupported, "cannot be locked"),
        (libc::EEXIST, ErrorKind::Busy, "in use"),
        (libc::EINVAL, ErrorKind::InvalidInput, "does not take"),
        (libc::EIO, ErrorKind::Io, "map 4096 bytes"),
    ];
    for (errno, kind, part) in cases {
        let error = map_error(4096, io::Error::from_raw_os_error(errno));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let text = refused(7, io::Error::from_raw_os_error(libc::EPERM)).to_string();
    assert!(text.contains("allow_unsafe_interrupts=1"), "{text}");
}

#[test]
fn a_machine_without_vfio_is_told_what_to_load() {
    if std::path::Path::new(NODE).exists() {
        return;
    }
    let error = VfioContainer::new().expect_err("no VFIO here");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("modprobe vfio-pci"), "{error}");
}
