//! Links and things that are not files: followed or refused, and never a hang.

use crate::build::{Folder, open, refused, safetensors_of};
use fs_adapter::{Error, ErrorKind, Model, OpenOptions};
use std::path::Path;

fn open_without_links(path: impl AsRef<Path>) -> Result<Model, Error> {
    Model::open(path, &OpenOptions::default().follow_links(false))
}

const INDEX: &str = "model.safetensors.index.json";

/// The layout of the Hugging Face cache, with names of its own for blobs.
fn cache() -> Folder {
    let folder = Folder::new();
    folder.write("blobs/aaaa", safetensors_of(&["a"]));
    folder.write("blobs/bbbb", safetensors_of(&["b"]));
    folder.write(
        "blobs/cccc",
        r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#,
    );
    folder.link(
        "../../blobs/aaaa",
        "snapshots/r/model-00001-of-00002.safetensors",
    );
    folder.link(
        "../../blobs/bbbb",
        "snapshots/r/model-00002-of-00002.safetensors",
    );
    folder.link("../../blobs/cccc", &format!("snapshots/r/{INDEX}"));
    folder
}

#[test]
fn a_linked_cache_opens_by_folder_and_index() {
    let folder = cache();
    for path in [
        folder.path("snapshots/r"),
        folder.path("snapshots/r").join(INDEX),
    ] {
        let model = open(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.tensors().len(), 2);
        assert_eq!(model.files()[0].name(), "model-00001-of-00002.safetensors");
        model.check_unchanged().expect("unchanged");
    }
    assert_eq!(
        open(folder.path("blobs/aaaa"))
            .expect("a blob")
            .tensors()
            .len(),
        1
    );
    refused(
        "cache root",
        open(folder.root()),
        ErrorKind::NotAModel,
        "snapshots/REVISION",
    );
}

#[test]
fn a_relinked_shard_is_noticed() {
    let folder = cache();
    let model = open(folder.path("snapshots/r")).expect("valid");
    let link = folder.path("snapshots/r/model-00002-of-00002.safetensors");
    std::fs::remove_file(&link).expect("remove");
    std::os::unix::fs::symlink("../../blobs/aaaa", &link).expect("link");
    refused(
        "relinked",
        model.check_unchanged(),
        ErrorKind::Changed,
        "replaced",
    );
}

#[test]
fn without_links_plain_files_open_and_links_do_not() {
    let folder = cache();
    folder.write("plain/model.safetensors", safetensors_of(&["a"]));
    folder.link("plain", "linked-folder");
    folder.link("../plain/model.safetensors", "other/model.safetensors");
    for path in [
        "plain",
        "plain/",
        "plain/model.safetensors",
        "linked-folder/model.safetensors",
    ] {
        let model = open_without_links(folder.path(path)).unwrap_or_else(|error| panic!("{error}"));
        model.check_unchanged().expect(path);
    }
    for path in [
        "snapshots/r",
        "snapshots/r/model-00001-of-00002.safetensors",
        "other",
        "other/model.safetensors",
        "linked-folder",
        "linked-folder/",
        "linked-folder/.",
    ] {
        refused(
            path,
            open_without_links(folder.path(path)),
            ErrorKind::UnsafePath,
            "symbolic link",
        );
    }
}

#[test]
fn without_links_a_linked_subfolder_is_refused() {
    let folder = Folder::new();
    folder.write("real/s.safetensors", safetensors_of(&["a"]));
    folder.link("../real", "model/sub");
    folder.write(
        "model/model.safetensors.index.json",
        r#"{"weight_map":{"a":"sub/s.safetensors"}}"#,
    );
    open(folder.path("model")).expect("links are followed by default");
    refused(
        "sub",
        open_without_links(folder.path("model")),
        ErrorKind::UnsafePath,
        "symbolic link",
    );
}

#[test]
fn links_to_nowhere_are_named() {
    let folder = Folder::new();
    let dangling = folder.link("../../blobs/gone", "r/model.safetensors");
    refused(
        "dangling",
        open(&dangling),
        ErrorKind::NotFound,
        "does not exist",
    );
    refused(
        "in a folder",
        open(folder.path("r")),
        ErrorKind::NotFound,
        "does not exist",
    );
    let looped = folder.link("loop.safetensors", "loop.safetensors");
    refused("loop", open(looped), ErrorKind::NotFound, "itself");
    let indexed = Folder::new();
    indexed.write(INDEX, r#"{"weight_map":{"a":"s.safetensors"}}"#);
    indexed.link("../blobs/gone", "s.safetensors");
    refused(
        "shard",
        open(indexed.root()),
        ErrorKind::Incomplete,
        "s.safetensors",
    );
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = Folder::new();
    let pipe = folder.path("pipe.safetensors");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .expect("a pipe");
    let socket = folder.path("socket.safetensors");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    std::fs::create_dir(folder.path("dir.safetensors")).expect("a folder");
    folder.link("pipe.safetensors", "link.safetensors");
    for (path, text) in [
        (pipe.as_path(), "a pipe"),
        (&folder.path("link.safetensors"), "a pipe"),
        (&socket, "a socket"),
        (Path::new("/dev/null"), "a device"),
    ] {
        refused(text, open(path), ErrorKind::NotAFile, text);
        if !path.is_symlink() {
            refused(text, open_without_links(path), ErrorKind::NotAFile, text);
        }
    }
    for (shard, text) in [
        ("pipe.safetensors", "a pipe"),
        ("dir.safetensors", "a folder"),
    ] {
        folder.write(INDEX, format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#));
        refused(shard, open(folder.path(INDEX)), ErrorKind::NotAFile, text);
    }
}

#[test]
fn files_are_blocking_again_after_the_open() {
    let folder = Folder::new();
    let model = open(folder.write("model.safetensors", safetensors_of(&["a"]))).expect("valid");
    let flags = rustix::fs::fcntl_getfl(model.files()[0].file()).expect("flags");
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
}
