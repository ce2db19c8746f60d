//! One source under test: submits, waits as the driver of an engine does, and keeps count
//! of what has to come back. Knows no content.
//!
//! unsafe: submits commands into memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the targets are the suite's own"
)]

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ubio::source::{Completion, FillCommand, MemoryId, Source, Target, Wait};
use ubio::window::WindowMemory;
use ubio_core::{FillError, FillErrorKind, ObjectId, Token};

use super::{Made, Shape, SourceFixture};
use crate::guarded::{GUARD_BYTES, Guarded, POISON, assert_same};

/// How long anything may take before the source counts as stuck.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How often a command that found its bytes not resident is sent again: the kernel says so
/// of resident pages too, when it would have to wait for a lock.
const TRIES: u32 = 50;

pub(super) struct Session<'a> {
    pub(super) fixture: &'a dyn SourceFixture,
    /// Before the memory of the case, so that it is dropped first.
    pub(super) source: Box<dyn Source>,
    kept: Vec<Made>,
    /// By token: the command and its tries.
    waiting: HashMap<u64, (FillCommand, u32)>,
    next_token: u64,
    /// Whether the fixture's objects are in the page cache, as far as anyone can say.
    pub(super) resident: bool,
}

impl<'a> Session<'a> {
    pub(super) fn open(fixture: &'a dyn SourceFixture) -> Self {
        Self {
            fixture,
            source: fixture.open(),
            kept: Vec::new(),
            waiting: HashMap::new(),
            next_token: 1 << 40,
            resident: true,
        }
    }

    /// Bytes that offsets, lengths and places of commands are multiples of.
    pub(super) fn alignment(&self) -> u64 {
        self.source.limits().alignment.into()
    }

    /// Makes and adds an object; `None` skips the case.
    pub(super) fn add(&mut self, shape: &Shape) -> Option<ObjectId> {
        let made = self.fixture.make(shape)?;
        let id = self.source.add_object(made.object.clone());
        self.kept.push(made);
        Some(id.expect("room for an object"))
    }

    pub(super) fn attach(&mut self, memory: &Guarded, register: bool) -> MemoryId {
        let windows = WindowMemory::of(Arc::clone(memory.region()), memory.region().len_bytes());
        self.source
            .attach(&windows, register)
            .expect("room for memory")
    }

    pub(super) fn command(
        &mut self,
        object: ObjectId,
        range: (u64, u64),
        memory: MemoryId,
        at: u64,
    ) -> FillCommand {
        self.next_token += 1;
        FillCommand {
            token: Token(self.next_token),
            object,
            offset: range.0,
            len: u32::try_from(range.1).expect("commands are small"),
            route: self.fixture.route(),
            target: Target::Memory { memory, offset: at },
        }
    }

    /// Submits, or gives the command back.
    pub(super) fn submit(&mut self, command: FillCommand) -> Result<(), FillCommand> {
        self.start(command, 1)?;
        assert_eq!(self.source.in_flight(), self.waiting.len(), "in flight");
        Ok(())
    }

    fn start(&mut self, command: FillCommand, tries: u32) -> Result<(), FillCommand> {
        // SAFETY: the cases give every command a target of its own and look at it only
        // after its completion.
        unsafe { self.source.submit(command.clone()) }?;
        let before = self.waiting.insert(command.token.0, (command, tries));
        assert!(before.is_none(), "a case uses a token twice");
        Ok(())
    }

    pub(super) fn must_submit(&mut self, command: FillCommand) {
        if let Err(command) = self.submit(command) {
            panic!("{command:?} was refused, and the source is not full");
        }
    }

    /// Polls once, as a driver does, and checks what came.
    pub(super) fn poll(&mut self, wait: Wait) -> Vec<Completion> {
        let mut completions = Vec::new();
        let waker = self.source.waker();
        if wait != Wait::No {
            waker.about_to_sleep();
        }
        let polled = self.source.poll(wait, &mut completions);
        if wait != Wait::No {
            waker.awake();
        }
        polled.expect("the source is not broken");
        let lost = |completion: &Completion| {
            let kind = completion.result.map_err(|error| error.kind);
            kind == Err(FillErrorKind::NotResident)
        };
        completions.retain(|completion| {
            let Some((command, tries)) = self.waiting.remove(&completion.token.0) else {
                panic!("{completion:?} was not under way: unknown, or completed twice");
            };
            let again = self.resident && tries < TRIES && lost(completion);
            if again {
                let started = self.start(command, tries + 1);
                assert!(started.is_ok(), "no room where a command just left");
            }
            !again
        });
        assert_eq!(self.source.in_flight(), self.waiting.len(), "in flight");
        assert!(self.source.device_in_flight() <= self.source.in_flight());
        completions
    }

    /// Waits until nothing is under way.
    pub(super) fn finish(&mut self) -> Vec<Completion> {
        let start = Instant::now();
        let mut all = Vec::new();
        while !self.waiting.is_empty() {
            all.extend(self.poll(Wait::AtMost(Duration::from_millis(50))));
            assert!(
                start.elapsed() < PATIENCE,
                "{} commands never completed",
                self.waiting.len()
            );
        }
        // What is reported twice would be reported now.
        assert_eq!(self.poll(Wait::No), [], "completions of nothing");
        all
    }

    /// One command from submit to completion.
    pub(super) fn read(
        &mut self,
        object: ObjectId,
        range: (u64, u64),
        memory: MemoryId,
        at: u64,
    ) -> Result<u32, FillError> {
        let command = self.command(object, range, memory, at);
        let token = command.token;
        self.must_submit(command);
        let completions = self.finish();
        assert_eq!(completions.len(), 1);
        assert_eq!(completions[0].token, token);
        completions[0].result
    }

    /// Reads `range` of an object to `at` and checks every byte of the memory: those brought,
    /// those around the target, and those of the target that the object was too short for.
    pub(super) fn check_read(
        &mut self,
        object: ObjectId,
        shape: &Shape,
        range: (u64, u64),
        (memory, id): (&Guarded, MemoryId),
        at: u64,
    ) {
        let what = format!("{} bytes at {}", range.1, range.0);
        let wanted = shape.bytes(range.0, range.1);
        match self.read(object, range, id, at) {
            Ok(bytes) => assert_eq!(u64::from(bytes), wanted.len() as u64, "{what}"),
            Err(error) => panic!("{what}: {error:?}"),
        }
        let end = at + wanted.len() as u64;
        assert_same(&memory.bytes(at..end), &wanted, &what);
        if self.fixture.route().is_dma() {
            // DMA moves whole blocks, and the kernel zeroes what it did not move.
            let block_end = end.next_multiple_of(self.alignment()).min(at + range.1);
            let rest = memory.bytes(block_end..at + range.1);
            let clean = rest.iter().all(|&byte| byte == 0 || byte == POISON);
            assert!(clean, "{what}: foreign bytes behind the object's end");
            memory.check_poison_outside(&[span(at, range.1)]);
        } else {
            memory.check_poison_outside(&[span(at, wanted.len() as u64)]);
        }
    }
}

/// Poisoned memory of the fixture's kind, `len_bytes` of it usable.
pub(super) fn guarded(fixture: &dyn SourceFixture, len_bytes: u64) -> Guarded {
    Guarded::of(
        fixture.window_region(len_bytes + 2 * GUARD_BYTES),
        len_bytes,
    )
}

/// The range of `len` bytes from `at`.
pub(super) fn span(at: u64, len: u64) -> Range<u64> {
    at..at + len
}
