//! Where io_uring is forbidden, as containers do by seccomp: named as a fallback, every byte
//! right all the same.
//!
//! unsafe: installs a seccomp filter in the child, between fork and exec.
#![expect(unsafe_code, reason = "pre_exec and seccomp are raw")]

use std::os::unix::process::CommandExt;

use crate::models::write_model;
use crate::program::{Said, args, command, folder};

/// `io_uring_setup` and `io_uring_enter` on every architecture.
const IO_URING_SETUP: u32 = 425;
const IO_URING_ENTER: u32 = 426;

/// Answers EPERM to one system call, and lets all else pass.
fn forbid(number: u32) -> std::io::Result<()> {
    let errno = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt,
        jf,
        k,
    };
    // The number of the call is the first word of struct seccomp_data.
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, errno),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its filter outlive the calls, which copy them.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) != 0
    };
    if failed {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

fn ubcp_without(number: u32, args: &[std::ffi::OsString]) -> Said {
    let mut command = command(args);
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(move || forbid(number)) };
    command.output().expect("ubcp starts").into()
}

fn ubcp_without_io_uring(args: &[std::ffi::OsString]) -> Said {
    ubcp_without(IO_URING_SETUP, args)
}

/// A ring that can be made and not be used: the engine's thread ends as soon as it would sleep,
/// before or after the load was asked for.
#[test]
fn a_ring_that_breaks_ends_the_load_with_its_cause() {
    let folder = folder();
    let path = write_model(folder.path());
    for _ in 0..20 {
        let args = args![path, "host:", "--via=ub", "--route=direct"];
        let said = ubcp_without(IO_URING_ENTER, &args);
        said.failed(1, &["io_uring_enter failed", "seccomp"]);
    }
}

#[test]
fn a_sandbox_without_io_uring_is_named_and_served() {
    let folder = folder();
    let path = write_model(folder.path());
    for via in ["ub", "in-place", "auto"] {
        let args = args![path, "host:", "--via", via, "--cold", "--verify", "--json"];
        let said = ubcp_without_io_uring(&args).well().json();
        assert_eq!(said["verified"], true);
        let reader = said["explain"]["reader"].as_str().expect("a word");
        assert!(reader.starts_with("threads ("), "{reader}");
        let reasons: Vec<_> = said["fallbacks"]
            .as_array()
            .expect("an array")
            .iter()
            .map(|fallback| fallback["reason"].clone())
            .collect();
        assert!(reasons.contains(&"no_io_uring".into()), "{said}");
        let strict = args.iter().cloned().chain(["--strict".into()]);
        ubcp_without_io_uring(&strict.collect::<Vec<_>>()).failed(5, &["seccomp"]);
    }
}
