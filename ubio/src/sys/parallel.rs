//! The same work on several threads at once, for what happens before the ring thread has
//! anything to do. Knows no work.

use crate::error::Result;

/// Runs `work` on up to `threads` threads, this one among them, until each has returned; the
/// first error. `work` takes its share from something that they have in common: where the
/// system gives fewer threads, those there are do all of it.
pub(crate) fn in_parallel(threads: usize, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mine = work();
        others
            .into_iter()
            .map(|thread| thread.join().expect("the work does not panic"))
            .fold(mine, |so_far, result| so_far.and(result))
    })
}
