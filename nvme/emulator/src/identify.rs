//! What the controller says of itself and its namespaces: Base 5.17.2, NVM 4.1.5.

use nvme_sys::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, OACS_DOORBELL_BUFFER,
    OAES_NAMESPACE_ATTRIBUTE, ONCS_COMPARE, ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES,
};
use zerocopy::FromZeros;

use crate::config::{Config, Namespace, SglSupport};
use crate::registers::VERSION;

/// Fills a field of text with spaces.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    field
}

pub(crate) fn controller(config: &Config) -> [u8; IDENTIFY_BYTES] {
    let mut data = IdentifyController::new_zeroed();
    data.serial = padded(&config.serial);
    data.model = padded("ubio emulated NVMe controller");
    data.firmware = padded("1");
    data.max_data_transfer = config.max_data_transfer;
    data.version = VERSION.into();
    data.retry_delays = config.retry_delays.map(Into::into);
    if config.doorbell_buffer {
        data.optional_admin = OACS_DOORBELL_BUFFER.into();
    }
    data.abort_limit = config.abort_limit;
    data.async_event_limit = config.async_event_limit;
    data.optional_events = OAES_NAMESPACE_ATTRIBUTE.into();
    (data.sq_entry_sizes, data.cq_entry_sizes) = (0x66, 0x44);
    data.namespaces = count(config).into();
    let optional = ONCS_COMPARE | ONCS_DATASET_MANAGEMENT | ONCS_WRITE_ZEROES;
    data.optional_nvm = optional.into();
    // Bits 2:1: flush takes all namespaces at once.
    data.volatile_write_cache = 0b110 | u8::from(config.volatile_write_cache);
    let sgls: u32 = match config.sgl {
        SglSupport::None => 0,
        SglSupport::Bytes => 1,
        SglSupport::Dwords => 2,
    };
    data.sgl_support = sgls.into();
    let name = format!("nqn.2014-08.org.nvmexpress:ubio:emulated:{}", config.serial);
    for (place, byte) in data.subsystem_nqn.iter_mut().take(255).zip(name.bytes()) {
        *place = byte;
    }
    zerocopy::transmute!(data)
}

fn count(config: &Config) -> u32 {
    u32::try_from(config.namespaces.len()).expect("checked")
}

pub(crate) fn namespace(namespace: &Namespace, id: u32) -> [u8; IDENTIFY_BYTES] {
    let mut data = IdentifyNamespace::new_zeroed();
    let blocks = namespace.blocks();
    (data.size, data.capacity, data.used) = (blocks.into(), blocks.into(), blocks.into());
    data.protection = namespace.protection;
    if namespace.metadata_bytes > 0 {
        // A buffer of its own.
        data.metadata_capabilities = 0b10;
        data.protection_capabilities = 0b1_1111;
    }
    // Deallocated blocks read as zeroes.
    data.deallocated = 1;
    data.optimal_boundary = namespace.optimal_boundary.into();
    data.guid = guid(id);
    data.lba_formats[0] = LbaFormat {
        metadata_bytes: namespace.metadata_bytes.into(),
        block_shift: namespace.block_shift,
        performance: 0,
    };
    // NSATTR, byte 99: bit 0, write protected.
    let mut bytes: [u8; IDENTIFY_BYTES] = zerocopy::transmute!(data);
    bytes[99] = u8::from(namespace.disk.is_read_only());
    bytes
}

fn guid(id: u32) -> [u8; 16] {
    let mut guid = *b"ubio-emulated\0\0\0";
    guid[12..].copy_from_slice(&id.to_be_bytes());
    guid
}

/// Identifiers of active namespaces above `after`, in order.
pub(crate) fn active(config: &Config, after: u32) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    let ids = after.saturating_add(1)..=count(config);
    for (place, id) in bytes.chunks_exact_mut(4).zip(ids) {
        place.copy_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Namespace identification descriptors: a GUID.
pub(crate) fn descriptors(id: u32) -> [u8; IDENTIFY_BYTES] {
    let mut bytes = [0; IDENTIFY_BYTES];
    (bytes[0], bytes[1]) = (2, 16);
    bytes[4..20].copy_from_slice(&guid(id));
    bytes
}
