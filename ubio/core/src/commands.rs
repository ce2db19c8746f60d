//! The command slab: one slot for each command that is with the source or waits to be
//! submitted again. Tells a good completion from a stale, repeated or foreign one; decides
//! nothing else.

use alloc::vec::Vec;

use crate::units::Token;

/// Where a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Free,
    InFlight,
    Waiting,
}

/// One command: a range of one lease's fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) place: Place,
    pub(crate) lease: u16,
    /// First byte, from the fill's first byte.
    pub(crate) offset: u32,
    /// Bytes.
    pub(crate) len: u32,
    /// Submissions so far.
    pub(crate) tries: u8,
    /// Transient errors so far.
    pub(crate) transient_errors: u8,
    /// Device errors so far.
    pub(crate) device_errors: u8,
    /// How often the slot was submitted; half of its token.
    sequence: u32,
}

/// Why a completion is not of a command in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// Of an earlier use of the slot.
    Stale,
    /// The slot's last command has completed already.
    Duplicate,
    /// Never given out.
    Unknown,
}

/// All command slots.
#[derive(Debug)]
pub(crate) struct Commands {
    slots: Vec<Command>,
    free: Vec<u16>,
}

impl Commands {
    /// Takes room for `count` commands.
    pub(crate) fn new(count: u16) -> Commands {
        let free = Command {
            place: Place::Free,
            lease: 0,
            offset: 0,
            len: 0,
            tries: 0,
            transient_errors: 0,
            device_errors: 0,
            sequence: 0,
        };
        Commands {
            slots: alloc::vec![free; usize::from(count)],
            free: (0..count).rev().collect(),
        }
    }

    /// Puts a new command over a range in flight; `None` when all slots are taken.
    #[inline]
    pub(crate) fn start(&mut self, lease: u16, offset: u32, len: u32) -> Option<Token> {
        let id = self.free.pop()?;
        let command = &mut self[id];
        debug_assert_eq!(command.place, Place::Free);
        let sequence = command.sequence.wrapping_add(1);
        *command = Command {
            place: Place::InFlight,
            lease,
            offset,
            len,
            tries: 1,
            transient_errors: 0,
            device_errors: 0,
            sequence,
        };
        Some(token(id, sequence))
    }

    /// Marks a command that waited as with the source, under a new token.
    #[inline]
    pub(crate) fn submit(&mut self, id: u16) -> Token {
        let command = &mut self[id];
        debug_assert_eq!(command.place, Place::Waiting);
        command.place = Place::InFlight;
        command.tries = command.tries.saturating_add(1);
        command.sequence = command.sequence.wrapping_add(1);
        token(id, command.sequence)
    }

    /// The command in flight under a token.
    #[inline]
    pub(crate) fn find(&self, token: Token) -> Result<u16, Foreign> {
        let (id, sequence) = split(token);
        let Some((id, command)) = id.and_then(|id| Some((id, self.slots.get(usize::from(id))?)))
        else {
            return Err(Foreign::Unknown);
        };
        if command.sequence == sequence {
            match command.place {
                Place::InFlight => Ok(id),
                _ if command.sequence == 0 => Err(Foreign::Unknown),
                _ => Err(Foreign::Duplicate),
            }
        } else if sequence == 0 || sequence > command.sequence {
            Err(Foreign::Unknown)
        } else {
            Err(Foreign::Stale)
        }
    }

    /// The command in flight in a token's slot, whatever the token's sequence: a planted bug.
    pub(crate) fn find_whatever_sequence(&self, token: Token) -> Result<u16, Foreign> {
        let id = split(token).0.ok_or(Foreign::Unknown)?;
        let command = self.slots.get(usize::from(id)).ok_or(Foreign::Unknown)?;
        if command.place == Place::InFlight {
            Ok(id)
        } else {
            Err(Foreign::Stale)
        }
    }

    /// Takes a command back from the source to be submitted again, without its first `landed`
    /// bytes.
    #[inline]
    pub(crate) fn wait(&mut self, id: u16, landed: u32) {
        let command = &mut self[id];
        debug_assert_eq!(command.place, Place::InFlight);
        debug_assert!(landed < command.len);
        command.place = Place::Waiting;
        command.offset += landed;
        command.len -= landed;
    }

    /// Gives the slot back.
    #[inline]
    pub(crate) fn release(&mut self, id: u16) {
        debug_assert!(self[id].place != Place::Free);
        self[id].place = Place::Free;
        self.free.push(id);
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All slots, for checks and the rare paths.
    pub(crate) fn len(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }
}

/// The token of a slot's use.
#[inline]
fn token(id: u16, sequence: u32) -> Token {
    Token(u64::from(id) | u64::from(sequence) << 32)
}

/// Slot and sequence of a token.
#[inline]
fn split(token: Token) -> (Option<u16>, u32) {
    let id = u16::try_from(token.0 & 0xffff_ffff).ok();
    let sequence = u32::try_from(token.0 >> 32).unwrap_or(0);
    (id, sequence)
}

impl core::ops::Index<u16> for Commands {
    type Output = Command;
    #[inline]
    fn index(&self, id: u16) -> &Command {
        &self.slots[usize::from(id)]
    }
}

impl core::ops::IndexMut<u16> for Commands {
    #[inline]
    fn index_mut(&mut self, id: u16) -> &mut Command {
        &mut self.slots[usize::from(id)]
    }
}
