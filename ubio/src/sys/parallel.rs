//! The same work on several threads at once, for what happens before the ring thread has
//! anything to do. Knows no work.

use super::thread;
use crate::error::Result;

/// Runs `work` on up to `threads` threads, this one among them, until each has returned; the
/// first error. `work` takes its share from something that they have in common: where the
/// system gives fewer threads, those there are do all of it.
pub(crate) fn in_parallel(threads: usize, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .take_while(|_| thread::is_room())
            .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mine = work();
        others
            .into_iter()
            .map(|thread| thread.join().expect("the work does not panic"))
            .fold(mine, |so_far, result| so_far.and(result))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::error::{Error, ErrorKind};

    #[test]
    fn all_is_done_once_and_an_error_of_any_thread_is_told() {
        for threads in [0, 1, 4] {
            let next = AtomicU32::new(0);
            let done = AtomicU32::new(0);
            let run = |failing: u32| {
                next.store(0, Ordering::Relaxed);
                done.store(0, Ordering::Relaxed);
                in_parallel(threads, || {
                    loop {
                        match next.fetch_add(1, Ordering::Relaxed) {
                            part if part == failing => {
                                return Err(Error::new(ErrorKind::Io, "a part"));
                            }
                            100.. => return Ok(()),
                            _ => done.fetch_add(1, Ordering::Relaxed),
                        };
                    }
                })
            };
            run(u32::MAX).expect("nothing fails");
            assert_eq!(done.load(Ordering::Relaxed), 100);
            assert!(run(50).is_err());
        }
    }
}
