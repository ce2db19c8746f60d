//! Doing something as a user without rights: a thread of its own, whose identity ends with it.
//!
//! The kernel keeps users and capabilities by thread; only the C library's functions change all
//! of them at once. Knows nothing of what is done.

use anyhow::{Context, Result, anyhow};
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Somebody without rights.
pub(crate) const NOBODY: u32 = 65_534;

/// Does it as `nobody`.
pub(crate) fn as_nobody<R: Send>(body: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    let run = || {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user).context("cannot be another user")?;
        body()
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    ended.map_err(|_panic| anyhow!("it panicked"))?
}

/// Does it while the process may lock so many bytes.
pub(crate) fn with_locked_limit<R>(bytes: u64, body: impl FnOnce() -> R) -> Result<R> {
    let before = getrlimit(Resource::Memlock);
    let limited = Rlimit {
        current: Some(bytes),
        maximum: before.maximum,
    };
    setrlimit(Resource::Memlock, limited)?;
    let done = body();
    setrlimit(Resource::Memlock, before)?;
    Ok(done)
}
