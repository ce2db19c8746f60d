//! How a controller lies all the time: capabilities, data, what it grants. Knows no commands.

use super::input::Input;

/// How it lies all the time, from the first bytes of the input.
#[derive(Debug)]
pub(super) struct Habits {
    pub(super) cap: u64,
    pub(super) register_bytes: u64,
    pub(super) vectors: u16,
    /// Runs are of a page each.
    pub(super) scattered: bool,
    /// CSTS.RDY does not follow CC.EN.
    pub(super) frozen: Option<bool>,
    /// Every event request is answered at once.
    pub(super) storm: bool,
    pub(super) quiesce_fails: bool,
    /// Memory of commands is not given back.
    pub(super) unmap_fails: bool,
    pub(super) granted: u32,
    pub(super) controller: Vec<u8>,
    pub(super) namespace: Vec<u8>,
}

impl Habits {
    pub(super) fn new(input: &mut Input) -> Self {
        let kinds = input.byte();
        let timeout = input.byte();
        let legal = 0x3ff | u64::from(timeout) << 24 | 1 << 37;
        let cap = match input.byte() {
            0..160 => legal,
            160..240 => {
                let entries = u64::from(input.u16());
                (legal & !0xffff) | entries | u64::from(input.byte() & 15) << 32
            }
            _ => u64::from_le_bytes(input.bytes()),
        };
        let rare = input.byte();
        let bit = |at: u8| rare & at == at;
        Self {
            cap,
            register_bytes: 0x1000 << (1 + (kinds & 7)),
            vectors: u16::from(kinds >> 3 & 3),
            scattered: kinds & 0x20 != 0,
            frozen: bit(0b111).then_some(kinds & 0x40 != 0),
            storm: bit(0b1000),
            quiesce_fails: bit(0b11_0000),
            unmap_fails: bit(0b1010_0000),
            granted: match input.byte() {
                0..128 => 0x0003_0003,
                128..160 => 0,
                160..192 => u32::MAX,
                _ => input.u32(),
            },
            controller: controller_data(input),
            namespace: namespace_data(input),
        }
    }
}

fn controller_data(input: &mut Input) -> Vec<u8> {
    let mut data = vec![0; 4096];
    data[4..8].copy_from_slice(b"LIAR");
    // MDTS, ACL, AERL, and SGLs or not.
    data[77] = input.byte();
    data[258] = input.byte();
    data[259] = input.byte();
    let kinds = input.byte();
    data[536] = kinds & 3;
    // Shadow doorbells.
    data[257] = kinds >> 2 & 1;
    if kinds > 200 {
        garble(&mut data, input);
    }
    data
}

fn namespace_data(input: &mut Input) -> Vec<u8> {
    let mut data = vec![0; 4096];
    data[..8].copy_from_slice(&1024_u64.to_le_bytes());
    data[130] = 9;
    match input.byte() {
        0..160 => {}
        160..200 => data[130] = 9 + input.byte() % 8,
        200..220 => data[..8].copy_from_slice(&input.bytes::<8>()),
        _ => garble(&mut data, input),
    }
    data
}

/// Puts bytes where fields are.
pub(super) fn garble(data: &mut [u8], input: &mut Input) {
    for _ in 0..input.byte() % 16 {
        let at = usize::from(input.u16()) % 600;
        data[at] = input.byte();
    }
}
